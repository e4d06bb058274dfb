// A loaded bundle: its bytes and where each kernel lies in them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "jit/compiled_kernel.hpp"

namespace tilewise::jit {

class Bundle {
 public:
  /// Throws Error (invalid_argument) with the path and what is wrong with the file.
  explicit Bundle(const std::string& path);

  /// The kernel of this source; its checksum is looked at now. None, with the reason in `fault` where an entry is there
  /// but damaged.
  [[nodiscard]] std::optional<CompiledKernel> find(const std::string& source_hash, std::string& fault) const;
  [[nodiscard]] std::size_t size() const { return entries_.size(); }

 private:
  std::vector<std::byte> bytes_;
  std::unordered_map<std::string, std::span<const std::byte>> entries_;  // by source hash, which covers the target
};

}  // namespace tilewise::jit
