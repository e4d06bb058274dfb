// What find_compiler() and compile() are made of, one function for each way to compile.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
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

/// The options that every kernel of a target is compiled with.
[[nodiscard]] std::vector<std::string> usual_options(const Compiler& compiler, const Target& target);
/// The <stdint.h> that NVRTC and hipRTC are given.
[[nodiscard]] std::string standard_integers(CompilerKind kind);

/// Clang for AMD, or the host's compiler, on the files that lie in `folder` (the stub as stub_name()).
[[nodiscard]] Compilation compile_with_program(const Compiler& compiler, const Target& target,
                                               const KernelSource& source, const std::filesystem::path& folder);
/// NVRTC or hipRTC, with all sources in memory.
[[nodiscard]] Compilation compile_at_run_time(const Compiler& compiler, const Target& target,
                                              const KernelSource& source);
/// What the stub is called in a compiler's messages and in its folder.
[[nodiscard]] std::string stub_name(TargetKind kind);

struct Version {
  int major = 0, minor = 0;
  auto operator<=>(const Version&) const = default;
};
/// Which of these versions of NVRTC to use with a driver for CUDA `driver` (zeros: no driver). A driver runs the
/// machine code of its own major version's compilers, whatever their minor version: the newest that it knows whole
/// comes first, then the newest of its major version; newer ones are refused. Without a driver, the newest. None: all
/// are refused.
[[nodiscard]] std::optional<std::size_t> choose_nvrtc(std::span<const Version> versions, Version driver);

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
