// A launch, its tensor maps, and the counter that deals out tiles; another that joins parts of the keys.
#include "backends/cuda/hopper/lowering.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "backends/cuda/hopper/estimate.hpp"
#include "backends/cuda/hopper/schedule.hpp"
#include "backends/portable/attention/bind.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "backends/portable/traits.hpp"
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

const AttentionParams& call_of(const void* call) { return *static_cast<const AttentionParams*>(call); }

/// A dimension of one entry has whatever stride; the driver wants all of them on 16 bytes.
std::uint64_t stride_bytes(std::int64_t extent, std::int64_t stride, DType dtype) {
  constexpr std::uint64_t kUnit = 16;
  return extent > 1 ? static_cast<std::uint64_t>(stride) * size_of(dtype) : kUnit;
}
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
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

std::int64_t group_of(const AttentionParams& call) { return call.num_heads_q / call.num_heads_k; }

// kPacks: whether heads of a group are rows of one tile.
template <bool kPacks>
void bind_q(const void* from, gpu::TensorMap& map) {
  const AttentionParams& call = call_of(from);
  bind_rows(call, call.q, call.head_dim, kPacks ? group_of(call) : 1, map);
}
template <bool kPacks>
void bind_out(const void* from, gpu::TensorMap& map) {
  const AttentionParams& call = call_of(from);
  bind_rows(call, call.out, call.head_dim_v, kPacks ? group_of(call) : 1, map);
}
void bind_k(const void* from, gpu::TensorMap& map) {
  bind_keys(call_of(from), call_of(from).k, call_of(from).head_dim, map);
}
void bind_v(const void* from, gpu::TensorMap& map) {
  bind_keys(call_of(from), call_of(from).v, call_of(from).head_dim_v, map);
}

std::vector<gpu::TensorMapParameter> tensor_maps(const Problem& p, const device::HopperForwardConfig& config,
                                                 const device::TileOrder& order) {
  using Params = device::HopperForwardParams;
  const bool packs = config.pack_gqa;
  const auto group = static_cast<std::uint32_t>(packs ? p.num_heads_q / p.num_heads_k : 1);
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
  return {{offsetof(Params, q_map), rows, packs ? bind_q<true> : bind_q<false>},
          {offsetof(Params, k_map), keys, bind_k},
          {offsetof(Params, v_map), keys, bind_v},
          {offsetof(Params, out_map), outs, packs ? bind_out<true> : bind_out<false>}};
}

void bind(const void* call, void* block) {
  const AttentionParams& from = call_of(call);
  auto& params = *static_cast<device::HopperForwardParams*>(block);
  params.shape = from;
  params.score = from;
  params.out = from.out;
  params.softmax_lse = from.softmax_lse;
  params.sink = from.sink;
  params.q_scale = from.q_scale;
  params.k_scale = from.k_scale;
  params.v_scale = from.v_scale;
}

/// The portable kernel that joins parts of the keys.
void add_combine(const Problem& p, std::int64_t splits, gpu::LoweringBuilder& builder) {
  Problem stored = p;  // of fp8 it sees the sums alone
  stored.dtype = operations::attention::out_dtype_of(p);
  const device::CombineConfig config = portable::combine_config(stored);
  device::CombineParams params{};
  params.shape = operations::attention::shape_of(p);
  const std::int64_t tiles = ceil_div(p.seqlen_q, splits > device::kRowSplits ? 1 : config.waves);
  params.grid = device::tile_grid(tiles, 1, p.num_heads_q, p.num_heads_q / p.num_heads_k);
  params.num_splits = splits;
  const auto bind_params = [](const void* call, void* block) {
    portable::bind(call_of(call), *static_cast<device::CombineParams*>(block));
  };
  const gpu::Extent3 grid{static_cast<std::uint32_t>(tiles * p.num_heads_q * p.batch_size)};
  builder.launch<portable::Combine>(gpu::Family::sm80, config, grid, params, bind_params);
}

/// What the copy engine and the kernel can't do.
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

}  // namespace

operations::attention::FeatureSet attention_features() {
  using enum operations::attention::Feature;
  return {bf16,        f16,          fp8_e4m3,    f16_out,   forward,    gqa,       head_dim_v,    packed,
          window_left, window_right, top_left,    softcap,   scale_sign, bias,      bias_boolean,  alibi,
          sink,        dropout,      seed_tensor, seqused_q, seqused_k,  leftpad_k, deterministic, batch_invariant};
}

Outcome lower(const Problem& p, const core::DeviceDescription& device) {
  if (std::string reason = refusal_of(p); !reason.empty()) return {{}, std::move(reason)};
  const ForwardSchedule schedule = forward_schedule(p, device);
  const device::HopperForwardConfig& config = schedule.config;
  const std::uint32_t shared_bytes = Forward::shared_bytes(config, gpu::Family::sm90);
  if (shared_bytes > device.shared_bytes) {
    return {{},
            concat("needs ", shared_bytes, " bytes of shared memory a block, ", device.architecture, " has ",
                   device.shared_bytes)};
  }
  device::HopperForwardParams params{};
  params.shape = operations::attention::shape_of(p);
  params.order = tile_order(p, schedule, device.multiprocessors);
  const std::int64_t tiles = tile_count(params.order);
  if (tiles > std::int64_t{1} << 30) return {{}, concat("tiles of queries must be <= 2^30 (got ", tiles, ")")};
  gpu::LoweringBuilder builder(portable::traits_of(device, gpu::Family::sm80).overlaps_steps);
  const gpu::Extent3 grid{static_cast<std::uint32_t>(std::min<std::int64_t>(tiles, device.multiprocessors))};
  if (gpu::Launch* launch = builder.launch<Forward>(gpu::Family::sm90, config, grid, params, bind)) {
    launch->tensor_maps = tensor_maps(p, config, params.order);
  }
  if (config.split) add_combine(p, schedule.splits, builder);
  builder.append_schedule(describe(schedule));
  Outcome outcome{builder.finish(), {}};
  outcome.lowering.estimated_us = Estimator(p, device).forward_us(config, schedule.splits);
  return outcome;
}

}  // namespace tilewise::backends::hopper
