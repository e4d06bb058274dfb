// What find_compiler() and compile() are made of, one function for each way to compile.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "jit/child_process.hpp"
#include "jit/compiler.hpp"
#include "jit/runtime_compiler.hpp"

namespace tilewise::jit {

/// What a compiler made and said. `error`: how it failed, in a few words; empty where it did not.
struct Compilation {
  std::string error, log;
  std::vector<std::byte> image;
};

/// Clang for AMD, or the host's compiler, on the files that lie in `folder` (the stub as stub_name()).
[[nodiscard]] Compilation compile_with_program(const Compiler& compiler, const Target& target,
                                               const KernelSource& source, const std::filesystem::path& folder);
/// NVRTC or hipRTC, with all sources in memory.
[[nodiscard]] Compilation compile_at_run_time(const Compiler& compiler, const Target& target,
                                              const KernelSource& source);
/// What the stub is called in a compiler's messages and in its folder.
[[nodiscard]] std::string stub_name(TargetKind kind);

/// Searches, each for one way to compile.
[[nodiscard]] CompilerSearch find_nvrtc();
[[nodiscard]] CompilerSearch find_clang();
[[nodiscard]] CompilerSearch find_hiprtc();
[[nodiscard]] CompilerSearch find_host_compiler();

/// The compiler process's program; empty with `reason` set where there is none.
[[nodiscard]] std::filesystem::path find_compiler_process(std::string& reason);
/// Asks the compiler process. reply.error tells whatever went wrong, crashes and time limits included.
[[nodiscard]] CompilerReply ask_compiler_process(const CompilerRequest& request, double limit_seconds);

}  // namespace tilewise::jit
