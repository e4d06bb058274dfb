// Addresses, extents and strides of tensor maps; see tensor_maps.hpp.
#include "backends/cuda/hopper/tensor_maps.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace tilewise::backends::hopper {

using device::AttendedRows, device::Tensor4;

namespace {

std::uint64_t extent_of(std::int64_t extent) { return static_cast<std::uint64_t>(std::max<std::int64_t>(extent, 1)); }

}  // namespace

void bind_query_rows(const AttendedRows& call, const Tensor4& t, std::int64_t dim, std::int64_t group,
                     gpu::TensorMap& map) {
  const bool packed = call.cu_seqlens_q != nullptr;
  const std::int64_t rows = packed ? call.total_q : call.seqlen_q, batch = packed ? 1 : call.batch_size;
  const std::int64_t heads = call.num_heads_q / group;
  map.address = t.data;
  map.dims = {extent_of(dim), extent_of(group), extent_of(rows), extent_of(heads), extent_of(batch)};
  const auto bytes = [&map](std::int64_t extent, std::int64_t stride) {
    return stride_bytes(extent, stride, map.dtype);
  };
  map.strides = {bytes(group, t.head_stride), bytes(rows, t.seq_stride), bytes(heads, t.head_stride * group),
                 bytes(batch, t.batch_stride)};
}

void bind_bias_rows(const AttendedRows& call, std::int64_t group, gpu::TensorMap& map) {
  const device::BiasTensor& t = call.bias;
  if (call.seqlen_k == 0) {  // any memory does
    map.address = call.q.data;
    map.dims = {1, 1, 1, 1, 1};
  } else {
    map.address = t.data;
    map.dims = {extent_of(call.seqlen_k), extent_of(group), extent_of(call.seqlen_q),
                extent_of(call.num_heads_q / group), extent_of(call.batch_size)};
  }
  const std::array<std::int64_t, 4> strides{t.head_stride, t.query_stride, t.head_stride * group, t.batch_stride};
  for (std::size_t i = 0; i < strides.size(); ++i) {
    map.strides[i] = stride_bytes(static_cast<std::int64_t>(map.dims[i + 1]), strides[i], map.dtype);
  }
}

void bind_keys(const AttendedRows& call, const Tensor4& t, std::int64_t dim, gpu::TensorMap& map) {
  const bool packed = call.cu_seqlens_k != nullptr;
  const std::int64_t rows = packed ? call.total_k : call.seqlen_k, batch = packed ? 1 : call.batch_size;
  const auto bytes = [&map](std::int64_t extent, std::int64_t stride) {
    return stride_bytes(extent, stride, map.dtype);
  };
  if (rows == 0 || t.data == nullptr) {
    map.address = call.q.data;
    map.dims = {extent_of(std::min(dim, call.head_dim)), 1, 1, 1};
    map.strides = {bytes(1, 0), bytes(1, 0), bytes(1, 0)};
    return;
  }
  map.address = t.data;
  map.dims = {extent_of(dim), extent_of(rows), extent_of(call.num_heads_k), extent_of(batch)};
  map.strides = {bytes(rows, t.seq_stride), bytes(call.num_heads_k, t.head_stride), bytes(batch, t.batch_stride)};
}

void bind_key_rows(const AttendedRows& call, const Tensor4& t, std::int64_t dim, gpu::TensorMap& map) {
  gpu::TensorMap keys = map;
  bind_keys(call, t, dim, keys);
  map.address = keys.address;
  map.dims = {keys.dims[0], 1, keys.dims[1], keys.dims[2], keys.dims[3]};
  map.strides = {stride_bytes(1, 0, map.dtype), keys.strides[0], keys.strides[1], keys.strides[2]};
}

}  // namespace tilewise::backends::hopper
