// Element types, devices and TensorView, a non-owning strided view that converts to and
// from DLPack's DLTensor. Strides count elements, as everywhere in Tilewise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "tilewise/cxx20.hpp"
#include "tilewise/dlpack.h"
#include "tilewise/export.h"

namespace tilewise {

/// fp8_e4m3 is e4m3fn (±448, no infinities); fp8_e8m0 a scale, 2^(byte - 127), 255 a NaN. fp4_e2m1 is packed: elements
/// 2i and 2i + 1 along the dimension of stride 1 share a byte, the first in its low half, and every other stride is
/// even, so that a row begins on a byte. Shapes and strides count elements there too.
enum class DType : std::uint8_t {
  none,
  f32,
  bf16,
  f16,
  f64,
  boolean,
  u8,
  i32,
  i64,
  fp8_e4m3,
  fp8_e5m2,
  fp8_e8m0,
  fp4_e2m1
};
enum class DeviceType : std::uint8_t { cpu, cuda, hip };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// Size of one element in bits (0 for DType::none).
[[nodiscard]] TILEWISE_EXPORT std::size_t bits_of(DType dtype) noexcept;
/// Size of one element in bytes (0 for DType::none). Throws Error (invalid_argument) for one that is no whole byte.
[[nodiscard]] TILEWISE_EXPORT std::size_t size_of(DType dtype);
/// "f32", "bf16", ...: the names used in problem text and messages.
[[nodiscard]] TILEWISE_EXPORT std::string_view to_string(DType dtype) noexcept;
/// "cpu", "cuda" or "hip".
[[nodiscard]] TILEWISE_EXPORT std::string_view to_string(DeviceType type) noexcept;

inline constexpr int kMaxRank = 6;

/// A borrowed tensor. A default-constructed view means "not given" (see defined()).
/// `data` points at element [0, ..., 0]; it may be null where a dimension is 0.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::none;
  Device device{};
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};  ///< in elements

  TensorView() = default;
  /// A row-major contiguous view.
  TILEWISE_EXPORT TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device = {});
  /// A strided view; `strides` has as many entries as `shape`.
  TILEWISE_EXPORT TensorView(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                             std::initializer_list<std::int64_t> strides, Device device = {});

  [[nodiscard]] bool defined() const noexcept { return dtype != DType::none; }
  [[nodiscard]] TILEWISE_EXPORT std::int64_t numel() const noexcept;
};

/// "f32[2, 128, 8, 64]": how a tensor appears in messages.
[[nodiscard]] TILEWISE_EXPORT std::string describe(const TensorView& view);

/// Reads a DLPack tensor (byte_offset applied, missing strides filled in). Throws Error
/// (invalid_type / invalid_argument) naming `name` for a dtype, device or rank Tilewise does not know.
[[nodiscard]] TILEWISE_EXPORT TensorView from_dlpack(const DLTensor& tensor, std::string_view name);
/// Fills `tensor`, whose shape and strides point into `view`, which must outlive it.
TILEWISE_EXPORT void to_dlpack(const TensorView& view, DLTensor* tensor);

}  // namespace tilewise
