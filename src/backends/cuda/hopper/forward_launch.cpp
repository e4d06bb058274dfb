// Tensor maps of the forward kernel, and its launch.
#include "backends/cuda/hopper/forward_launch.hpp"

#include <algorithm>
#include <cstddef>

#include "core/message.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/rules.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::concat;
using device::AttentionParams, device::Tensor4;

constexpr std::int64_t kMostHeadDim = 256;
constexpr std::int64_t kLongest = std::int64_t{1} << 29;
constexpr std::uint32_t kBoxBytes = 128;  // of a row

/// A dimension of one entry has whatever stride; the driver wants all of them on 16 bytes.
std::uint64_t stride_bytes(std::int64_t extent, std::int64_t stride, DType dtype) {
  constexpr std::uint64_t kUnit = 16;
  return extent > 1 ? static_cast<std::uint64_t>(stride) * size_of(dtype) : kUnit;
}
std::uint64_t extent_of(std::int64_t extent) { return static_cast<std::uint64_t>(std::max<std::int64_t>(extent, 1)); }

/// [dim, head of the group, seq, group, batch] of q or out.
void bind_rows(const AttentionParams& call, const Tensor4& t, std::int64_t dim, std::int64_t group,
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

/// [dim, seq, head, batch] of k or v. Without keys any memory does: no weight is anything but 0.
void bind_keys(const AttentionParams& call, const Tensor4& t, std::int64_t dim, gpu::TensorMap& map) {
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

std::int64_t group_of(const AttentionParams& call, bool packs) {
  return packs ? call.num_heads_q / call.num_heads_k : 1;
}

std::vector<gpu::TensorMapParameter> tensor_maps(const Problem& p, const device::HopperForwardConfig& config,
                                                 const device::TileOrder& order, const MapBinds& binds) {
  using Params = device::HopperForwardParams;
  const auto group = static_cast<std::uint32_t>(config.pack_gqa ? p.num_heads_q / p.num_heads_k : 1);
  gpu::TensorMap rows, keys;
  rows.dtype = keys.dtype = p.dtype;
  const auto columns = [](DType dtype) { return static_cast<std::uint32_t>(kBoxBytes / size_of(dtype)); };
  rows.rank = 5;
  rows.box = {columns(p.dtype), group, static_cast<std::uint32_t>(order.queries_per_warpgroup), 1, 1};
  keys.rank = 4;
  keys.box = {columns(p.dtype), static_cast<std::uint32_t>(config.block_n), 1, 1};
  gpu::TensorMap outs = rows;
  outs.dtype = operations::attention::out_dtype_of(p);
  outs.box[0] = columns(outs.dtype);
  return {{offsetof(Params, q_map), rows, binds.q},
          {offsetof(Params, k_map), keys, binds.k},
          {offsetof(Params, v_map), keys, binds.v},
          {offsetof(Params, out_map), outs, binds.out}};
}

}  // namespace

void bind_q(const AttentionParams& call, bool packs, gpu::TensorMap& map) {
  bind_rows(call, call.q, call.head_dim, group_of(call, packs), map);
}
void bind_out(const AttentionParams& call, bool packs, gpu::TensorMap& map) {
  bind_rows(call, call.out, call.head_dim_v, group_of(call, packs), map);
}
void bind_k(const AttentionParams& call, gpu::TensorMap& map) { bind_keys(call, call.k, call.head_dim, map); }
void bind_v(const AttentionParams& call, gpu::TensorMap& map) { bind_keys(call, call.v, call.head_dim_v, map); }

std::string refusal_of(const Problem& p) {
  if (p.head_dim > kMostHeadDim || p.head_dim_v > kMostHeadDim) {
    return concat("head_dim and head_dim_v must be <= ", kMostHeadDim, " (got ", p.head_dim, " and ", p.head_dim_v,
                  ")");
  }
  const std::int64_t unit = p.dtype == DType::fp8_e4m3 ? 16 : 8;  // a row is whole pieces of 16 bytes
  if (p.head_dim % unit != 0 || p.head_dim_v % unit != 0) {
    return concat("head_dim and head_dim_v must be multiples of ", unit, " (got ", p.head_dim, " and ", p.head_dim_v,
                  ")");
  }
  if (p.unaligned) return "every row of q, k, v and out must start on 16 bytes (got one that does not)";
  const std::int64_t longest = std::max({p.seqlen_q, p.seqlen_k, p.total_q, p.total_k});
  if (longest > kLongest) return concat("rows of a tensor must be <= 2^29 (got ", longest, ")");
  return {};
}

std::string add_forward(const Problem& p, const ForwardSchedule& schedule, const core::DeviceDescription& device,
                        gpu::Bind bind, const MapBinds& maps, gpu::LoweringBuilder& builder) {
  const device::HopperForwardConfig& config = schedule.config;
  const std::uint32_t shared_bytes = Forward::shared_bytes(config, gpu::Family::sm90);
  if (shared_bytes > device.shared_bytes) {
    return concat("needs ", shared_bytes, " bytes of shared memory a block, ", device.architecture, " has ",
                  device.shared_bytes);
  }
  device::HopperForwardParams params{};
  params.shape = operations::attention::shape_of(p);
  params.order = tile_order(p, schedule, device.multiprocessors);
  const std::int64_t tiles = tile_count(params.order);
  if (tiles > std::int64_t{1} << 30) return concat("tiles of queries must be <= 2^30 (got ", tiles, ")");
  const gpu::Extent3 grid{static_cast<std::uint32_t>(std::min<std::int64_t>(tiles, device.multiprocessors))};
  if (gpu::Launch* launch = builder.launch<Forward>(gpu::Family::sm90, config, grid, params, bind)) {
    launch->tensor_maps = tensor_maps(p, config, params.order, maps);
  }
  builder.append_schedule(describe(schedule));
  return {};
}

}  // namespace tilewise::backends::hopper
