// Configs, grids and launches of the backward pass; see bwd_lowering.hpp.
#include "backends/cuda/hopper/bwd_lowering.hpp"

#include <algorithm>
#include <cstddef>

#include "backends/cuda/hopper/bwd_estimate.hpp"
#include "backends/cuda/hopper/bwd_schedule.hpp"
#include "backends/cuda/hopper/kernels.hpp"
#include "backends/cuda/hopper/schedule.hpp"
#include "backends/cuda/hopper/tensor_maps.hpp"
#include "backends/portable/attention/bind.hpp"
#include "backends/portable/attention/clear_rest.hpp"
#include "backends/portable/attention/kernels.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "backends/portable/traits.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/rules.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::ceil_div, core::concat;
using device::AttentionParams;

const AttentionParams& call_of(const void* call) { return *static_cast<const AttentionParams*>(call); }

void bind_statistics(const void* call, void* block) {
  const AttentionParams& from = call_of(call);
  auto& params = *static_cast<device::HopperBwdStatisticsParams*>(block);
  params.shape = from;
  params.out = from.out;
  params.dout = from.dout;
  params.softmax_lse = from.softmax_lse;
  params.dlse = from.dlse;
}

void bind_bwd(const void* call, void* block) {
  const AttentionParams& from = call_of(call);
  auto& params = *static_cast<device::HopperBwdParams*>(block);
  params.shape = from;
  params.score = from;
  params.dk = from.dk;
  params.dv = from.dv;
}

/// A gradient that nobody asks for is not stored, and its map may be any.
void bind_gradient(const AttentionParams& call, const device::Tensor4& t, const device::Tensor4& like, std::int64_t dim,
                   gpu::TensorMap& map) {
  bind_key_rows(call, t.data != nullptr ? t : like, dim, map);
}

/// Without queries nothing is brought, and the map may be any.
void bind_queries(const AttentionParams& call, const device::Tensor4& t, std::int64_t dim, gpu::TensorMap& map) {
  bind_query_rows(call, t, dim, 1, map);
  if (t.data == nullptr) map.address = call.k.data;
}

std::vector<gpu::TensorMapParameter> tensor_maps(const Problem& p, const device::HopperBwdConfig& config) {
  using Params = device::HopperBwdParams;
  using Map = gpu::TensorMap;
  constexpr auto kRows = static_cast<std::uint32_t>(device::HopperBwdConfig::kRows);
  gpu::TensorMap rows, keys, gradients;
  rows.dtype = keys.dtype = gradients.dtype = p.dtype;
  rows.rank = gradients.rank = 5;
  keys.rank = 4;
  rows.box = {box_columns(p.dtype), 1, static_cast<std::uint32_t>(config.block_m), 1, 1};
  keys.box = {box_columns(p.dtype), static_cast<std::uint32_t>(config.block_n()), 1, 1};
  gradients.box = {box_columns(p.dtype), 1, kRows, 1, 1};
  const auto bind_q = [](const void* c, Map& m) { bind_queries(call_of(c), call_of(c).q, call_of(c).head_dim, m); };
  const auto bind_do = [](const void* c, Map& m) {
    bind_queries(call_of(c), call_of(c).dout, call_of(c).head_dim_v, m);
  };
  const auto bind_k = [](const void* c, Map& m) { bind_keys(call_of(c), call_of(c).k, call_of(c).head_dim, m); };
  const auto bind_v = [](const void* c, Map& m) { bind_keys(call_of(c), call_of(c).v, call_of(c).head_dim_v, m); };
  const auto bind_dk = [](const void* c, Map& m) {
    bind_gradient(call_of(c), call_of(c).dk, call_of(c).k, call_of(c).head_dim, m);
  };
  const auto bind_dv = [](const void* c, Map& m) {
    bind_gradient(call_of(c), call_of(c).dv, call_of(c).v, call_of(c).head_dim_v, m);
  };
  std::vector<gpu::TensorMapParameter> maps{
      {offsetof(Params, q_map), rows, bind_q},        {offsetof(Params, k_map), keys, bind_k},
      {offsetof(Params, v_map), keys, bind_v},        {offsetof(Params, dout_map), rows, bind_do},
      {offsetof(Params, dk_map), gradients, bind_dk}, {offsetof(Params, dv_map), gradients, bind_dv}};
  if (config.bias_boxes) {
    gpu::TensorMap bias = rows;
    bias.dtype = operations::attention::bias_dtype(p);
    bias.box[0] = box_columns(bias.dtype);
    if (!p.bias_dims.query) bias.box[2] = 1;
    maps.push_back({offsetof(Params, bias_map), bias, [](const void* c, Map& m) { bind_bias_rows(call_of(c), 1, m); }});
  }
  return maps;
}

class BackwardLowerer {
 public:
  BackwardLowerer(const Problem& p, const core::DeviceDescription& device)
      : p_(p),
        device_(device),
        traits_(portable::traits_of(device, gpu::Family::sm80)),
        config_(bwd_config(p)),
        shape_(operations::attention::shape_of(p)),
        query_tiles_(ceil_div(p.seqlen_q, device::HopperBwdStatisticsConfig::kRows)),
        rows_a_head_(query_tiles_ * device::HopperBwdStatisticsConfig::kRows),
        builder_(traits_.overlaps_steps) {
    splits_ = query_parts(p, config_, device);
    config_.split = splits_ > 1;
    // The statistics' first block clears the counter of tiles, and without queries there is none.
    if (config_.split || query_tiles_ == 0) config_.persistent = 0;
  }

  gpu::Outcome lower() {
    add_statistics();
    add_gradients();
    if (config_.split) add_sums_of_parts();
    if (p_.dq) add_dq();
    if (p_.dbias) add_dbias();
    if (p_.dsink) add_dsink();
    const double clear_us = portable::add_clear_rest(p_, traits_, builder_);
    builder_.append_schedule(
        concat(Bwd::kName, " ", config_.block_n(), "x", config_.block_m, " tiles, ", config_.kConsumers,
               " warpgroups, ", config_.stages, " stages", config_.split ? concat(", ", splits_, " splits") : "",
               config_.bias_boxes ? ", bias in boxes" : "", config_.ordered ? ", dq in a fixed order" : ""));
    gpu::Outcome outcome{builder_.finish(), {}};
    outcome.lowering.estimated_us = backward_us(p_, config_, splits_, device_) + clear_us;
    return outcome;
  }

 private:
  void add_statistics() {
    device::HopperBwdStatisticsConfig c;
    c.out_type = config_.out_type;
    c.head_dim = config_.head_dim;
    c.head_dim_v = config_.head_dim_v;
    c.waves = 8;
    c.lengths = config_.lengths;
    device::HopperBwdStatisticsParams params{};
    params.shape = shape_;
    params.grid = device::tile_grid(query_tiles_, 1, p_.num_heads_q, portable::group_of(p_));
    params.rows_a_head = rows_a_head_;
    const bool stores_first = config_.ordered && each_query_sees_a_key(p_, config_);
    params.dq_accum_a_head = stores_first ? 0 : rows_a_head_ * c.head_dim;
    params.dense_rows_a_head = p_.dsink || p_.dbias ? p_.seqlen_q : 0;
    params.turns_a_block = turns_a_block();
    params.counters = config_.persistent ? 1 : 0;
    builder_.launch<BwdStatistics>(gpu::Family::sm80, c, query_grid(), params, bind_statistics);
  }

  void add_gradients() {
    device::HopperBwdParams params{};
    params.shape = shape_;
    params.order = key_order(p_, config_, device_.multiprocessors);
    params.order.num_splits = static_cast<std::int32_t>(splits_);
    params.group = static_cast<std::int32_t>(portable::group_of(p_));
    params.divisors = device::order_divisors(params.order);
    params.order.counters = config_.persistent ? 1 : 0;
    params.rows_a_head = rows_a_head_;
    params.dq_accum_a_head = rows_a_head_ * config_.head_dim;
    params.turns_a_head = query_tiles_ * turns_a_block();
    params.bias_places = {p_.bias_dims.batch, p_.bias_dims.head, p_.bias_dims.query};
    if (config_.split) params.dk_accum_a_block = dk_accum_a_block(), params.dv_accum_a_block = dv_accum_a_block();
    std::int64_t blocks = key_blocks(p_, config_) * splits_;
    if (config_.persistent) blocks = std::min<std::int64_t>(blocks, device_.multiprocessors);
    gpu::Launch* launch =
        builder_.launch<Bwd>(gpu::Family::sm90, config_, {static_cast<std::uint32_t>(blocks)}, params, bind_bwd);
    if (launch != nullptr) launch->tensor_maps = tensor_maps(p_, config_);
  }

  void add_sums_of_parts() {
    // A warp has 16 keys: as so many waves of the portable kernel leave them.
    constexpr std::int32_t kWarpKeys = 16;
    device::BwdConfig like;
    like.rows_per_wave = kWarpKeys;
    like.waves = config_.block_n() / kWarpKeys;
    like.head_dim = config_.head_dim;
    like.head_dim_v = config_.head_dim_v;
    constexpr std::int64_t kSides = 2;  // dk and dv
    const std::int64_t tiles = ceil_div(p_.seqlen_k, config_.block_n());
    device::BwdConvertDkdvParams params{};
    params.shape = shape_;
    params.grid = device::tile_grid(tiles, kSides, p_.num_heads_k, 1);
    params.num_splits = splits_;
    params.dk_accum_a_block = dk_accum_a_block();
    params.dv_accum_a_block = dv_accum_a_block();
    const auto bind = [](const void* call, void* block) {
      portable::bind(call_of(call), *static_cast<device::BwdConvertDkdvParams*>(block));
    };
    builder_.launch<portable::BwdConvertDkdv>(
        gpu::Family::sm80, portable::bwd_convert_dkdv_config(p_, like),
        {static_cast<std::uint32_t>(tiles * kSides * p_.num_heads_k * p_.batch_size)}, params, bind);
  }

  void add_dq() {
    // The sums lie by 16 queries: as four waves of the portable kernel leave tiles of 128.
    device::BwdConfig like;
    like.waves = 4;
    like.block_m = device::HopperBwdStatisticsConfig::kRows;
    like.head_dim = config_.head_dim;
    device::BwdConvertDqParams params{};
    params.shape = shape_;
    params.grid = device::tile_grid(query_tiles_, 1, p_.num_heads_q, portable::group_of(p_));
    params.dq_accum_a_head = rows_a_head_ * config_.head_dim;
    const auto bind = [](const void* call, void* block) {
      portable::bind(call_of(call), *static_cast<device::BwdConvertDqParams*>(block));
    };
    builder_.launch<portable::BwdConvertDq>(gpu::Family::sm80, portable::bwd_convert_dq_config(p_, like), query_grid(),
                                            params, bind);
  }

  void add_dbias() {
    device::BwdDbiasParams params{};
    params.shape = shape_;
    std::ranges::copy(operations::attention::bias_shape(p_), params.dbias_shape);
    const auto bind = [](const void* call, void* block) {
      portable::bind(call_of(call), *static_cast<device::BwdDbiasParams*>(block));
    };
    const device::BwdDbiasConfig config = portable::bwd_dbias_config(p_, traits_);
    builder_.launch<portable::BwdDbias>(gpu::Family::sm80, config,
                                        {static_cast<std::uint32_t>(portable::dbias_blocks(p_, config))}, params, bind);
  }

  void add_dsink() {
    device::BwdDsinkParams params{};
    params.shape = shape_;
    const auto bind = [](const void* call, void* block) {
      portable::bind(call_of(call), *static_cast<device::BwdDsinkParams*>(block));
    };
    builder_.launch<portable::BwdDsink>(gpu::Family::sm80, portable::bwd_dsink_config(p_),
                                        {static_cast<std::uint32_t>(p_.num_heads_q)}, params, bind);
  }

  /// Of the tiles of queries that a block of the statistics has.
  [[nodiscard]] std::int64_t turns_a_block() const {
    const std::int64_t tiles = device::HopperBwdStatisticsConfig::kRows / config_.block_m;
    return config_.ordered ? tiles * config_.turns_a_tile() : 0;
  }
  [[nodiscard]] std::int64_t dk_accum_a_block() const { return std::int64_t{config_.block_n()} * config_.head_dim; }
  [[nodiscard]] std::int64_t dv_accum_a_block() const { return std::int64_t{config_.block_n()} * config_.head_dim_v; }
  [[nodiscard]] gpu::Extent3 query_grid() const {
    return {static_cast<std::uint32_t>(query_tiles_ * p_.num_heads_q * p_.batch_size)};
  }

  const Problem& p_;
  const core::DeviceDescription& device_;
  portable::DeviceTraits traits_;
  device::HopperBwdConfig config_;
  device::AttentionShape shape_;
  std::int64_t query_tiles_, rows_a_head_;
  std::int64_t splits_ = 1;  // parts that the queries of a tile of keys come in
  gpu::LoweringBuilder builder_;
};

std::string backward_refusal(const Problem& p, const core::DeviceDescription& device) {
  const auto missing = operations::attention::required_features(p).minus(backward_features());
  if (!missing.empty()) {
    return concat("does not support ", operations::attention::to_string(missing), " in the backward pass");
  }
  const device::HopperBwdConfig config = bwd_config(p);
  const std::uint32_t shared_bytes = Bwd::shared_bytes(config, gpu::Family::sm90);
  if (shared_bytes > device.shared_bytes) {
    return concat("needs ", shared_bytes, " bytes of shared memory a block, ", device.architecture, " has ",
                  device.shared_bytes);
  }
  constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30;
  const std::int64_t blocks = key_blocks(p, config);
  if (blocks > kMostBlocks) return concat("tiles of keys must be <= 2^30 (got ", blocks, ")");
  return {};
}

/// A bias in boxes takes the room of a third stage. Where two find none, each score loads its own.
device::HopperBwdConfig with_room_for_bias(device::HopperBwdConfig c) {
  const device::HopperBwdConfig wanted = c;
  for (; c.stages >= 2; --c.stages) {
    if (Bwd::shared_bytes(c, gpu::Family::sm90) <= kSharedRoom) return c;
  }
  c = wanted;
  c.bias_boxes = 0;
  return c;
}

/// Whether a fixed order of dq's sums is quicker than none, where nobody asks for it: their first ones are stored, so
/// that no launch clears dq, and couriers take them to memory. With few tiles of keys under a causal mask that is worth
/// more than what a block saves that works on several: of 16,384 tokens in 16 heads of 128 on an H200 512 take 367 us
/// for 379, 1k 467 for 474; 2k are level, full attention takes up to 4% longer. Blocks wait for each other, so there
/// are to be heads enough for every multiprocessor to have some of its own: fewer than these have not been measured.
bool order_pays(const Problem& p, const device::HopperBwdConfig& c) {
  constexpr std::int64_t kMostKeys = 1024, kFewestHeads = 256;
  constexpr std::int32_t kHeadDim = 128;
  return p.dtype == DType::bf16 && c.head_dim == kHeadDim && c.head_dim_v == kHeadDim && c.plain_scale &&
         p.mask == Mask::causal && !c.windowed && !c.lengths && !c.dropout && portable::group_of(p) == 1 &&
         p.seqlen_q == p.seqlen_k && p.seqlen_k <= kMostKeys && p.num_heads_k * p.batch_size >= kFewestHeads;
}

}  // namespace

operations::attention::FeatureSet backward_features() {
  using enum operations::attention::Feature;
  return {bf16,      f16,         backward,     gqa,           head_dim_v,
          packed,    window_left, window_right, top_left,      scale_sign,
          softcap,   bias,        bias_boolean, dbias,         sink,
          alibi,     dropout,     seed_tensor,  seqused_q,     seqused_k,
          leftpad_k, dlse,        dsink,        deterministic, batch_invariant,
          clear_rest};
}

device::HopperBwdConfig bwd_config(const Problem& p) {
  constexpr std::int32_t kNarrow = 64, kWide = 128;
  device::HopperBwdConfig c;
  c.q_type = c.k_type = c.v_type = c.out_type = p.dtype == DType::bf16 ? device::kBf16 : device::kF16;
  c.head_dim = portable::padded_dim(p.head_dim);
  // Products for dq of 64, 64 and 32 columns find no registers beside each other, says ptxas (C7511), and each waits
  // for the one before. Shared memory holds 192 columns all the same.
  if (c.head_dim == 160) c.head_dim = 192;
  c.head_dim_v = portable::padded_dim(p.head_dim_v);
  c.exact_dims = c.head_dim == p.head_dim && c.head_dim_v == p.head_dim_v;
  portable::set_score_options(c, p);
  c.windowed = p.window_left >= 0;
  c.ordered = p.dq && (p.deterministic || p.batch_invariant || order_pays(p, c));
  c.plain_scale = 1;  // a negative scale is one too: no maximum is looked for
  const std::int32_t head_dim = std::max(c.head_dim, c.head_dim_v);
  c.shares_keys = head_dim > kWide;
  c.normal_bound = has_normal_bound(p);
  const bool biased = p.bias != BiasKind::none;
  c.block_m = head_dim <= kNarrow && !biased ? 128 : 64;
  // Groups of heads would be one loop more around the steps, in which ptxas keeps nothing in uniform registers; f16 in
  // tiles of 128 queries spills 92 to 108 bytes, with a bias up to 140, dropout 34 to 132, softcap of wide heads 72 to
  // 100.
  const bool crowded = c.shares_keys ? c.softcap != 0 : p.dtype == DType::f16 && c.block_m > kNarrow;
  c.persistent = !c.ordered && !c.dropout && !biased && !crowded && portable::group_of(p) == 1;
  c.partial_rows = c.lengths || p.seqlen_q % c.block_m != 0;
  // Of K, V and three stages, as wide as boxes are, shared memory has room to 192.
  const auto boxed = [](std::int32_t dim) { return ceil_div(dim, 64) * 64; };
  c.stages = c.block_m > 64 || boxed(c.head_dim) + boxed(c.head_dim_v) > 2 * 192 ? 2 : 3;
  // Left padding would have boxes begin anywhere; the copy engine wants 16 bytes.
  c.bias_boxes = biased && p.bias_dims.key && !p.bias_unaligned && !p.leftpad_k;
  if (c.bias_boxes) c = with_room_for_bias(c);
  c.waves = 4 * c.warpgroups();
  return c;
}

gpu::Outcome lower_backward(const Problem& p, const core::DeviceDescription& device) {
  if (std::string reason = backward_refusal(p, device); !reason.empty()) return {{}, std::move(reason)};
  return BackwardLowerer(p, device).lower();
}

}  // namespace tilewise::backends::hopper
