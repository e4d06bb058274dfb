// How tensors of rows that attend are told to TMA: a map's address and extents, set from a call.
#pragma once

#include <cstdint>

#include "device/common/params.h"
#include "gpu/tensor_map.hpp"

namespace tilewise::backends::hopper {

/// Bytes that strides of maps are multiples of.
inline constexpr std::uint64_t kMapUnit = 16;
[[nodiscard]] constexpr std::uint64_t u(std::int64_t n) { return static_cast<std::uint64_t>(n); }
/// A dimension of one entry has whatever stride; the driver wants all of them on 16 bytes.
[[nodiscard]] inline std::uint64_t stride_bytes(std::int64_t extent, std::int64_t stride, DType dtype) {
  return extent > 1 ? u(stride) * size_of(dtype) : kMapUnit;
}

/// Of a box: 128 bytes of a row.
[[nodiscard]] inline std::uint32_t box_columns(DType dtype) {
  constexpr std::size_t kBoxBytes = 128;
  return static_cast<std::uint32_t>(kBoxBytes / size_of(dtype));
}

/// [dim, head of the group, seq, group, batch] of a tensor whose rows are queries.
void bind_query_rows(const device::AttendedRows& call, const device::Tensor4& t, std::int64_t dim, std::int64_t group,
                     gpu::TensorMap& map);
/// [key, head of the group, query, group, batch] of the bias. Dimensions that are broadcast have stride 0, which the
/// TMA takes.
void bind_bias_rows(const device::AttendedRows& call, std::int64_t group, gpu::TensorMap& map);
/// [dim, seq, head, batch] of one whose rows are keys. Without keys any memory does: no weight is anything but 0.
void bind_keys(const device::AttendedRows& call, const device::Tensor4& t, std::int64_t dim, gpu::TensorMap& map);
/// The same as [dim, 1, seq, head, batch], as stores have it.
void bind_key_rows(const device::AttendedRows& call, const device::Tensor4& t, std::int64_t dim, gpu::TensorMap& map);

}  // namespace tilewise::backends::hopper
