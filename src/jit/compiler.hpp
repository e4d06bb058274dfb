// The compilers: finding the one for a kind of target, and running it in a child process.
#pragma once

#include <optional>
#include <string>

#include "jit/compiled_kernel.hpp"
#include "jit/kernel_source.hpp"
#include "jit/target.hpp"

namespace tilewise::jit {

enum class CompilerKind { nvrtc, clang, hiprtc, host };

struct Compiler {
  CompilerKind kind = CompilerKind::host;
  std::string name;     ///< "nvrtc 13.0", "clang 22.1"
  std::string version;  ///< all that is known of it
  std::string path;     ///< program, or the library that the compiler process opens
};

struct CompilerSearch {
  std::optional<Compiler> compiler;
  std::string reason;   ///< why there is none and where it was looked for; empty where there is one
  std::string ignored;  ///< what was found and passed over because somebody else may write it (trust.hpp), and why
};

/// Looks anew, which takes milliseconds. Never throws for what it finds or not.
[[nodiscard]] CompilerSearch find_compiler(TargetKind kind);

/// All that shapes the compiler's output besides the source: part of a kernel's key on disk.
[[nodiscard]] std::string recipe(const Compiler& compiler, const Target& target);

/// TILEWISE_COMPILE_TIMEOUT in seconds, default 120. Throws Error for what is no number in [0.1, 86400].
[[nodiscard]] double compile_timeout();

/// Runs the compiler. Throws Error (runtime) with its output, the stub and the source line it stumbled over. With
/// TILEWISE_KEEP_SOURCE=1 all it was given and said stays in a folder named on standard error and in the message.
[[nodiscard]] CompiledKernel compile(const Compiler& compiler, const Target& target, const KernelSource& source);

}  // namespace tilewise::jit
