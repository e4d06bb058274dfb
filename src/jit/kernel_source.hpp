// What is compiled: a stub of a few lines that names one instantiation of the device headers.
#pragma once

#include <string>
#include <vector>

#include "core/visibility.hpp"
#include "jit/target.hpp"

namespace tilewise::jit {

struct KernelSource {
  std::string stub;                  ///< includes "device/..." headers and defines one extern "C" kernel
  std::string symbol;                ///< the kernel's name
  std::vector<std::string> options;  ///< compiler options beyond the usual ones of the target (rare)

  bool operator==(const KernelSource&) const = default;
};

/// Hash of the stub, of every device header it can reach, the symbol, the options and the target: what a bundle's
/// entry matches on. 64 hexadecimal digits. Throws Error where an included device header does not exist.
[[nodiscard]] TILEWISE_INTERNAL std::string source_hash(const Target& target, const KernelSource& source);

}  // namespace tilewise::jit
