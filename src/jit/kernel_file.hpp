// One compiled kernel as a block of bytes with a checksum: a file of the disk cache, an entry of a bundle.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "jit/compiled_kernel.hpp"
#include "jit/target.hpp"

namespace tilewise::jit {

/// Raised whenever the layout of the file changes.
inline constexpr unsigned kKernelFileVersion = 1;

struct KernelFile {
  std::string key;          ///< of the cache; empty in a bundle
  std::string source_hash;  ///< source_hash() of what was compiled
  Target target;
  CompiledKernel kernel;  ///< compile_seconds: what the compiler took
};

[[nodiscard]] std::vector<std::byte> encode(const KernelFile& file);
/// None, with the reason in `fault`, for bytes that are cut, altered or of another version.
[[nodiscard]] std::optional<KernelFile> decode(std::span<const std::byte> bytes, std::string& fault);

}  // namespace tilewise::jit
