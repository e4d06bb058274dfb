// What a kernel is compiled for: a kind of device and an architecture of it, as the compilers
// spell it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/visibility.hpp"

namespace tilewise::jit {

enum class TargetKind { cuda, hip, host };

struct Target {
  TargetKind kind = TargetKind::host;
  std::string architecture = "host";  ///< "sm_80", "sm_90a", "gfx942", "gfx1102", "host"

  bool operator==(const Target&) const = default;
};

/// Reads an architecture's name. Throws Error (invalid_argument), which lists known_architectures().
[[nodiscard]] TILEWISE_INTERNAL Target parse_target(std::string_view text);
/// Every architecture that parse_target() takes, in the order it lists them.
[[nodiscard]] std::vector<std::string> known_architectures();
/// "CUDA sm_90a", "HIP gfx942", "the host": for messages.
[[nodiscard]] TILEWISE_INTERNAL std::string to_string(const Target& target);

}  // namespace tilewise::jit
