// Tensor maps of the forward kernel, and its launch.
#include "backends/cuda/hopper/forward_launch.hpp"

#include <algorithm>
#include <cstddef>

#include "backends/cuda/hopper/tensor_maps.hpp"
#include "backends/portable/attention/launch_with_functions.hpp"
#include "core/message.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/rules.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::concat;
using device::AttendedRows;

constexpr std::int64_t kMostHeadDim = 256;
constexpr std::int64_t kLongest = std::int64_t{1} << 29;

std::int64_t group_of(const AttendedRows& call, bool packs) { return packs ? call.num_heads_q / call.num_heads_k : 1; }

/// How rows of a SwizzledTile lie.
gpu::Swizzle swizzle_of(std::int32_t row_bytes) {
  switch (row_bytes) {
    case 128:
      return gpu::Swizzle::bytes128;
    case 64:
      return gpu::Swizzle::bytes64;
    case 32:
      return gpu::Swizzle::bytes32;
    default:
      return gpu::Swizzle::none;
  }
}

std::vector<gpu::TensorMapParameter> tensor_maps(const Problem& p, const device::HopperForwardConfig& config,
                                                 const device::TileOrder& order, const MapBinds& binds) {
  using Params = device::HopperForwardParams;
  const auto group = static_cast<std::uint32_t>(config.pack_gqa ? p.num_heads_q / p.num_heads_k : 1);
  gpu::TensorMap rows, keys;
  rows.dtype = keys.dtype = p.dtype;
  rows.rank = 5;
  rows.box = {box_columns(p.dtype), group, static_cast<std::uint32_t>(order.queries_per_warpgroup), 1, 1};
  keys.rank = 4;
  keys.box = {box_columns(p.dtype), static_cast<std::uint32_t>(config.keys_of_box()), 1, 1};
  gpu::TensorMap outs = rows;
  outs.dtype = operations::attention::out_dtype_of(p);
  outs.box[0] = box_columns(outs.dtype);
  std::vector<gpu::TensorMapParameter> maps{{offsetof(Params, q_map), rows, binds.q, binds.q_part},
                                            {offsetof(Params, k_map), keys, binds.k},
                                            {offsetof(Params, v_map), keys, binds.v},
                                            {offsetof(Params, out_map), outs, binds.out}};
  if (config.turned_columns) {
    constexpr std::uint32_t kFirst[] = {offsetof(Params, q_first_map), offsetof(Params, k_first_map),
                                        offsetof(Params, v_first_map), offsetof(Params, out_first_map)};
    for (std::size_t i = 0; i < std::size(kFirst); ++i) {
      gpu::TensorMapParameter first = maps[i];
      first.param_offset = kFirst[i];
      first.most_columns = device::kPieceColumns;
      maps.push_back(first);
    }
  }
  if (config.bias_boxes) {
    gpu::TensorMap bias = rows;
    bias.dtype = operations::attention::bias_dtype(p);
    bias.box[0] = static_cast<std::uint32_t>(config.bias_row_bytes() / device::bias_bytes(config));
    bias.swizzle = swizzle_of(config.bias_row_bytes());
    if (!p.bias_dims.head) bias.box[1] = 1;
    if (!p.bias_dims.query) bias.box[2] = 1;
    maps.push_back({offsetof(Params, bias_map), bias, binds.bias});
  }
  return maps;
}

}  // namespace

void bind_q(const AttendedRows& call, bool packs, gpu::TensorMap& map) {
  bind_query_rows(call, call.q, call.head_dim, group_of(call, packs), map);
}
void bind_out(const AttendedRows& call, bool packs, gpu::TensorMap& map) {
  bind_query_rows(call, call.out, call.head_dim_v, group_of(call, packs), map);
}
void bind_bias(const AttendedRows& call, bool packs, gpu::TensorMap& map) {
  bind_bias_rows(call, group_of(call, packs), map);
}
void bind_k(const AttendedRows& call, gpu::TensorMap& map) { bind_keys(call, call.k, call.head_dim, map); }
void bind_v(const AttendedRows& call, gpu::TensorMap& map) { bind_keys(call, call.v, call.head_dim_v, map); }

device::OddStarts odd_starts(const device::Tensor4& t) {
  constexpr std::uintptr_t kPieceBytes = 16;
  if (t.seq_stride % device::kSectorColumns != 0 || t.batch_stride % device::kSectorColumns != 0) return {};
  const std::uintptr_t pieces = reinterpret_cast<std::uintptr_t>(t.data) / kPieceBytes;
  return {static_cast<std::int32_t>(pieces % 2), static_cast<std::int32_t>(t.head_stride / device::kPieceColumns % 2)};
}

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
  // tanh.approx errs by 2^-11 of its answer, which the cap multiplies: by 0.06 at most. The portable kernels' is exact.
  constexpr double kMostCap = 128.0;
  if (p.softcap > kMostCap) return concat("softcap must be <= ", kMostCap, " (got ", p.softcap, ")");
  const std::int64_t longest = std::max({p.seqlen_q, p.seqlen_k, p.total_q, p.total_k});
  if (longest > kLongest) return concat("rows of a tensor must be <= 2^29 (got ", longest, ")");
  return {};
}

std::string add_forward(const Problem& p, const ForwardSchedule& schedule, const core::DeviceDescription& device,
                        gpu::Bind bind, const MapBinds& maps, gpu::LoweringBuilder& builder,
                        const device::TileClasses<const std::uint8_t>& classes) {
  const device::HopperForwardConfig& config = schedule.config;
  const std::uint32_t shared_bytes = Forward::shared_bytes(config, gpu::Family::sm90);
  if (shared_bytes > device.shared_bytes) {
    return concat("needs ", shared_bytes, " bytes of shared memory a block, ", device.architecture, " has ",
                  device.shared_bytes);
  }
  device::HopperForwardParams params{};
  params.shape = operations::attention::shape_of(p);
  params.order = tile_order(p, schedule, device.multiprocessors);
  params.bias_places = {p.bias_dims.batch, p.bias_dims.head, p.bias_dims.query};
  const std::int64_t tiles = tile_count(params.order);
  if (tiles > std::int64_t{1} << 30) return concat("tiles of queries must be <= 2^30 (got ", tiles, ")");
  const std::int32_t cluster = config.blocks_of_cluster();
  const std::int64_t blocks = cluster * std::min<std::int64_t>(tiles, std::max(device.multiprocessors / cluster, 1));
  const gpu::Extent3 grid{static_cast<std::uint32_t>(blocks)};
  gpu::Launch* const launch =
      portable::has_functions(p)
          ? portable::launch_with_functions<Forward>(p, gpu::Family::sm90, config, grid, params, classes, bind, builder,
                                                     function_use(p, config))
          : builder.launch<Forward>(gpu::Family::sm90, config, grid, params, bind);
  if (launch != nullptr) {
    launch->tensor_maps = tensor_maps(p, config, params.order, maps);
    launch->cluster.x = static_cast<std::uint32_t>(cluster);
  }
  builder.append_schedule(describe(schedule));
  return {};
}

}  // namespace tilewise::backends::hopper
