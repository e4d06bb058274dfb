// Shared memory of what the kernels for products have in common: rows that swizzles take, and barriers of a ring.
#pragma once

#include <cstdint>

namespace tilewise::backends::hopper {

inline constexpr std::int32_t kPatternBytes = 1024;  // that swizzles repeat in, which the structs are aligned to
inline constexpr std::int32_t kRowBytes = 128, kBarrierBytes = 8;

/// Of the barriers of so many stages: one that is full and one that is empty of each.
[[nodiscard]] constexpr std::int32_t ring_bytes(std::int32_t stages) { return 2 * kBarrierBytes * stages; }
[[nodiscard]] constexpr std::uint32_t whole_patterns(std::int32_t bytes) {
  return static_cast<std::uint32_t>((bytes + kPatternBytes - 1) / kPatternBytes * kPatternBytes);
}

}  // namespace tilewise::backends::hopper
