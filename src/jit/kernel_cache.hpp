// The way to a compiled kernel: this process's memory, loaded bundles, the disk, a compiler.
// Thread-safe; safe beside fork(); many processes that want one kernel compile it once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/visibility.hpp"
#include "jit/compiled_kernel.hpp"
#include "jit/kernel_source.hpp"
#include "jit/target.hpp"

namespace tilewise::jit {

/// Compiles on first use, in a child process with a time limit (TILEWISE_COMPILE_TIMEOUT seconds, default 120).
/// Throws Error: unsupported with compiler_reason() where there is no compiler; runtime with the compiler's output
/// where it failed, crashed or took too long.
[[nodiscard]] std::shared_ptr<const CompiledKernel> find_or_compile(const Target& target, const KernelSource& source);

/// The kernel where it needs no compiling (memory, bundle, disk), else null. Throws Error for a bad TILEWISE_BUNDLE.
[[nodiscard]] std::shared_ptr<const CompiledKernel> find_compiled(const Target& target, const KernelSource& source);

/// Empty where a compiler for the target was found, else why there is none and where it was looked for.
/// Looks once for each state of the TILEWISE_ variables and PATH; an answer takes about a microsecond then.
[[nodiscard]] TILEWISE_INTERNAL std::string compiler_reason(const Target& target);

/// The compiler that find_or_compile() would run ("nvrtc 13.0", "clang 22.1"); empty where there is none.
[[nodiscard]] TILEWISE_INTERNAL std::string compiler_name(const Target& target);

/// The compilers that were passed over because somebody else may write them, and why; empty where there are none.
[[nodiscard]] TILEWISE_INTERNAL std::string ignored_compilers(const Target& target);

/// What is wrong with each file of TILEWISE_BUNDLE: those that somebody else may write are ignored, and one that is no
/// bundle is an error of every call that needs a kernel.
[[nodiscard]] TILEWISE_INTERNAL std::vector<std::string> bundle_faults();

/// Drops this process's kernels and loaded bundles, not the disk's. Kernels handed out stay valid.
void forget_kernels();

}  // namespace tilewise::jit
