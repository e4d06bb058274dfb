// What NVIDIA's tensor memory accelerator is told of a tensor. The driver encodes it into 128 bytes, which kernels get
// within their parameters.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tilewise/tensor.hpp"

namespace tilewise::gpu {

inline constexpr std::size_t kTensorMapBytes = 128;

/// How a box's rows are spread over the banks of shared memory.
enum class Swizzle : std::uint8_t { none, bytes32, bytes64, bytes128 };

struct TensorMap {
  void* address = nullptr;  ///< on 16 bytes
  DType dtype = DType::bf16;
  int rank = 0;
  std::array<std::uint64_t, 5> dims{};     ///< elements, the innermost dimension first
  std::array<std::uint64_t, 4> strides{};  ///< bytes, of all dimensions but the innermost; multiples of 16
  std::array<std::uint32_t, 5> box{};      ///< elements that one copy moves
  Swizzle swizzle = Swizzle::bytes128;

  bool operator==(const TensorMap&) const = default;
};

/// A map among a launch's parameters.
struct TensorMapParameter {
  std::uint32_t param_offset;  ///< a multiple of 64
  TensorMap map;               ///< as far as the problem decides it
  /// Sets address, dims and strides from the operation's parameters.
  void (*bind)(const void* call, TensorMap& map);
  std::string_view part{};         ///< of the workspace, which is the address then; empty: none
  std::size_t offset = 0;          ///< of the part, in bytes
  std::uint64_t most_columns = 0;  ///< of the innermost dimension, where the map has the first ones alone; 0: all
};

}  // namespace tilewise::gpu
