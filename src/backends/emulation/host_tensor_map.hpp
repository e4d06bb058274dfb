// Tensor maps of the emulation: what the driver would have encoded into 128 bytes, in the open.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "gpu/tensor_map.hpp"

namespace tilewise::backends::emulation {

struct HostTensorMap {
  static constexpr std::uint64_t kMark = 0x7469'6C65'7769'7365;  // of bytes that are a map

  std::uint64_t mark = kMark;
  std::byte* address = nullptr;
  std::array<std::uint64_t, 4> strides{};  ///< bytes
  std::array<std::uint32_t, 5> dims{}, box{};
  std::uint16_t rank = 0, element_bytes = 0;
  gpu::Swizzle swizzle = gpu::Swizzle::none;

  [[nodiscard]] std::size_t row_bytes() const { return std::size_t{box[0]} * element_bytes; }
  /// Rows of a box: all of its dimensions but the innermost.
  [[nodiscard]] std::size_t box_rows() const;
  [[nodiscard]] std::size_t box_bytes() const { return box_rows() * row_bytes(); }

  /// A row of the box at `at`: its address and how many of its elements lie in the tensor, from element `skipped` on.
  /// None: it reads as zeros and is not written.
  struct Row {
    std::byte* address;
    std::size_t skipped, count;  ///< elements
  };
  [[nodiscard]] Row row(const std::array<std::int32_t, 5>& at, std::size_t index) const;
};
static_assert(sizeof(HostTensorMap) <= gpu::kTensorMapBytes);

/// Where byte `offset` of a tile goes that is written with the swizzle: bits of the address decide.
[[nodiscard]] constexpr std::int64_t swizzled(gpu::Swizzle swizzle, std::int64_t address) {
  const std::int64_t rows = swizzle == gpu::Swizzle::bytes128  ? 7
                            : swizzle == gpu::Swizzle::bytes64 ? 3
                            : swizzle == gpu::Swizzle::bytes32 ? 1
                                                               : 0;
  return address ^ ((address >> 7 & rows) << 4);
}

/// Throws Error (runtime) where CUDA's driver would refuse the map.
[[nodiscard]] HostTensorMap encode_host_map(const gpu::TensorMap& map);

}  // namespace tilewise::backends::emulation
