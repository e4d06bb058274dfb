// Bundles: compiled kernels in one file that travels to a machine without a compiler.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/visibility.hpp"
#include "jit/compiled_kernel.hpp"
#include "jit/kernel_source.hpp"
#include "jit/target.hpp"

namespace tilewise::jit {

struct BundleEntry {
  Target target;
  std::string source_hash;  ///< source_hash(target, source) of the kernel's source
  CompiledKernel kernel;
};

/// Compiles (or finds) a kernel for a bundle. Throws as find_or_compile().
[[nodiscard]] BundleEntry make_bundle_entry(const Target& target, const KernelSource& source);

/// Writes a bundle, in place of what was there, at once or not at all. Throws Error (runtime) where it can't.
TILEWISE_INTERNAL void write_bundle(const std::string& path, std::span<const BundleEntry> entries);

/// Makes a bundle's kernels known to find_or_compile() in this process; returns how many it holds. The files of
/// TILEWISE_BUNDLE (a list separated by ':') are loaded by themselves on first use. Throws Error (invalid_argument)
/// with the path and what is wrong with it, or why distrust() (trust.hpp) speaks against it; a file of TILEWISE_BUNDLE
/// that it speaks against is ignored.
std::size_t load_bundle(const std::string& path);

}  // namespace tilewise::jit
