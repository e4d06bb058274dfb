// Configs, grids and launches of the backward pass; see bwd_lowering.hpp.
#include "backends/cuda/hopper/bwd_lowering.hpp"

#include <algorithm>
#include <cstddef>

#include "backends/cuda/hopper/bwd_config.hpp"
#include "backends/cuda/hopper/bwd_estimate.hpp"
#include "backends/cuda/hopper/bwd_schedule.hpp"
#include "backends/cuda/hopper/kernels.hpp"
#include "backends/cuda/hopper/schedule.hpp"
#include "backends/cuda/hopper/tensor_maps.hpp"
#include "backends/cuda/hopper/tile_lists.hpp"
#include "backends/portable/attention/bind.hpp"
#include "backends/portable/attention/block_states.hpp"
#include "backends/portable/attention/clear_rest.hpp"
#include "backends/portable/attention/functions.hpp"
#include "backends/portable/attention/launch_with_functions.hpp"
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

void bind_preprocess(const void* call, void* block) {
  const AttentionParams& from = call_of(call);
  auto& params = *static_cast<device::HopperBwdPreprocessParams*>(block);
  params.shape = from;
  params.softmax_lse = from.softmax_lse;
  params.dlse = from.dlse;
}

/// Where it clears what the gradients' own launch may leave out of dq, too.
void bind_preprocess_that_clears(const void* call, void* block) {
  bind_preprocess(call, block);
  static_cast<device::HopperBwdPreprocessParams*>(block)->dq = call_of(call).dq;
}

void bind_bwd(const void* call, void* block) {
  const AttentionParams& from = call_of(call);
  auto& params = *static_cast<device::HopperBwdParams*>(block);
  params.shape = from;
  params.score = from;
  params.dk = from.dk;
  params.dv = from.dv;
}
/// Where it rounds dq, too.
void bind_bwd_that_rounds(const void* call, void* block) {
  bind_bwd(call, block);
  static_cast<device::HopperBwdParams*>(block)->dq = call_of(call).dq;
}

/// Where functions change or hide scores, none rounds dq.
void bind_bwd_with_tables(const void* call, void* block) {
  auto& params = *static_cast<device::WithTables<device::HopperBwdParams>*>(block);
  bind_bwd(call, static_cast<device::HopperBwdParams*>(&params));
  portable::bind_tables(call_of(call), params.tables);
}

void bind_convert_dq(const void* call, void* block) {
  const AttentionParams& from = call_of(call);
  auto& params = *static_cast<device::HopperBwdConvertDqParams*>(block);
  params.shape = from;
  params.dq = from.dq;
  params.softmax_scale = from.softmax_scale;
}

/// A gradient that nobody asks for is not stored, and its map may be any.
void bind_gradient(const AttentionParams& call, const device::Tensor4& t, const device::Tensor4& like, std::int64_t dim,
                   gpu::TensorMap& map) {
  bind_key_rows(call, t.data != nullptr ? t : like, dim, map);
}

/// Without queries nothing is loaded, and the map may be any.
void bind_queries(const AttentionParams& call, const device::Tensor4& t, std::int64_t dim, gpu::TensorMap& map) {
  bind_query_rows(call, t, dim, 1, map);
  if (t.data == nullptr) map.address = call.k.data;
}

void bind_dout(const void* call, gpu::TensorMap& map) {
  bind_queries(call_of(call), call_of(call).dout, call_of(call).head_dim_v, map);
}

/// Boxes of so many rows of one head.
gpu::TensorMap boxes_of_rows(const Problem& p, std::int32_t rows) {
  gpu::TensorMap map;
  map.dtype = p.dtype;
  map.rank = 5;
  map.box = {box_columns(p.dtype), 1, static_cast<std::uint32_t>(rows), 1, 1};
  return map;
}

std::vector<gpu::TensorMapParameter> tensor_maps(const Problem& p, const device::HopperBwdConfig& config) {
  using Params = device::HopperBwdParams;
  using Map = gpu::TensorMap;
  const Map rows = boxes_of_rows(p, config.block_m), gradients = boxes_of_rows(p, device::HopperBwdConfig::kRows);
  Map keys;
  keys.dtype = p.dtype;
  keys.rank = 4;
  keys.box = {box_columns(p.dtype), static_cast<std::uint32_t>(config.block_n()), 1, 1};
  const auto bind_q = [](const void* c, Map& m) { bind_queries(call_of(c), call_of(c).q, call_of(c).head_dim, m); };
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
      {offsetof(Params, v_map), keys, bind_v},        {offsetof(Params, dout_map), rows, bind_dout},
      {offsetof(Params, dk_map), gradients, bind_dk}, {offsetof(Params, dv_map), gradients, bind_dv}};
  if (config.last_rounds) {
    gpu::TensorMap dq = rows;
    dq.box[2] = device::kDqRows;
    maps.push_back({offsetof(Params, dq_map), dq,
                    [](const void* c, Map& m) { bind_queries(call_of(c), call_of(c).dq, call_of(c).head_dim, m); }});
  }
  if (config.bias_boxes) {
    gpu::TensorMap bias = rows;
    bias.dtype = operations::attention::bias_dtype(p);
    bias.box[0] = box_columns(bias.dtype);
    if (!p.bias_dims.query) bias.box[2] = 1;
    maps.push_back({offsetof(Params, bias_map), bias, [](const void* c, Map& m) { bind_bias_rows(call_of(c), 1, m); }});
  }
  return maps;
}

std::vector<gpu::TensorMapParameter> preprocess_maps(const Problem& p, const device::HopperBwdPreprocessConfig& c) {
  using Params = device::HopperBwdPreprocessParams;
  const gpu::TensorMap rows = boxes_of_rows(p, c.tile_rows());
  const auto bind_out = [](const void* call, gpu::TensorMap& map) {
    bind_queries(call_of(call), call_of(call).out, call_of(call).head_dim_v, map);
  };
  return {{offsetof(Params, out_map), rows, bind_out}, {offsetof(Params, dout_map), rows, bind_dout}};
}

class BackwardLowerer {
 public:
  BackwardLowerer(const Problem& p, const BwdSchedule& schedule, const core::DeviceDescription& device)
      : p_(p),
        device_(device),
        traits_(portable::traits_of(device, gpu::Family::sm80)),
        config_(schedule.config),
        shape_(operations::attention::shape_of(p)),
        query_tiles_(ceil_div(p.seqlen_q, device::HopperBwdPreprocessConfig::kRows)),
        rows_a_head_(query_tiles_ * device::HopperBwdPreprocessConfig::kRows),
        splits_(schedule.splits),
        builder_(traits_.overlaps_steps) {}

  gpu::Outcome lower() {
    const double states_us = portable::add_block_states(p_, traits_, builder_);
    add_mask_tiles();
    add_preprocess();
    add_gradients();
    if (config_.split) add_sums_of_parts();
    if (p_.dq && !rounds_dq()) add_dq();
    if (p_.dbias) add_dbias();
    if (p_.dsink) add_dsink();
    const double clear_us = portable::add_clear_rest(p_, traits_, builder_);
    builder_.append_schedule(describe(BwdSchedule{config_, splits_}));
    gpu::Outcome outcome{builder_.finish(), {}};
    outcome.lowering.estimated_us =
        backward_us(p_, config_, splits_, device_) + states_us + tiles_.estimated_us + clear_us;
    return outcome;
  }

 private:
  void add_preprocess() {
    const device::HopperBwdPreprocessConfig c = device::preprocess_config(config_);
    device::HopperBwdPreprocessParams params{};
    params.shape = shape_;
    params.grid = device::tile_grid(preprocess_tiles(), 1, p_.num_heads_q, portable::group_of(p_));
    params.rows_a_head = rows_a_head_;
    const bool stores_first = config_.ordered && (config_.last_rounds || each_query_sees_a_key(p_, config_));
    params.dq_accum_a_head = stores_first ? 0 : rows_a_head_ * c.head_dim;
    params.dense_rows_a_head = p_.dsink || p_.dbias ? p_.seqlen_q : 0;
    const std::int64_t heads = p_.num_heads_q * p_.batch_size;
    params.all_turns = heads * query_tiles_ * turns_a_block();
    params.counters = counters();
    params.gradient_turns = gradient_turns();
    params.tiles = params.first_tiles = static_cast<std::int32_t>(heads * params.grid.num_tiles);
    if (config_.late_preprocess) {
      params.first_tiles = static_cast<std::int32_t>(first_heads(p_, config_, device_) * params.grid.num_tiles);
      params.late_blocks = static_cast<std::int32_t>(late_blocks(!stores_first, device_));
    }
    const auto blocks = std::min<std::int64_t>(params.tiles, device_.multiprocessors);
    gpu::Launch* launch = builder_.launch<BwdPreprocess>(
        gpu::Family::sm90, c, {static_cast<std::uint32_t>(blocks)}, params,
        config_.last_rounds && config_.lengths ? bind_preprocess_that_clears : bind_preprocess);
    if (launch != nullptr) launch->tensor_maps = preprocess_maps(p_, c);
  }

  [[nodiscard]] portable::FunctionUse function_use() const { return {portable::QueryIndex::query, known_tiles(p_)}; }
  /// What mask_mod leaves of the keys of each warpgroup.
  void add_mask_tiles() {
    device::HopperMaskTilesConfig c;
    c.own = device::HopperBwdConfig::kRows;
    c.parts = device::HopperBwdConfig::kConsumers;
    c.streamed = config_.block_m;
    c.keys_own = 1;
    tiles_ = add_tile_lists(p_, traits_, {c, function_use(), bind_mask_tiles, portable::group_of(p_)}, builder_);
  }

  void add_gradients() {
    device::HopperBwdParams params{};
    params.shape = shape_;
    params.order = key_order(p_, config_, device_);
    params.order.num_splits = static_cast<std::int32_t>(splits_);
    params.shares = static_cast<std::int32_t>(head_shares(p_, config_, device_));
    params.group = static_cast<std::int32_t>(portable::group_of(p_)) / params.shares;
    params.tiles = params.order.num_tiles / params.shares;
    params.divisors = device::order_divisors(params.order, params.shares);
    params.order.counters = static_cast<std::int32_t>(counters());
    params.rows_a_head = rows_a_head_;
    params.dq_accum_a_head = rows_a_head_ * config_.head_dim;
    params.turns_a_head = query_tiles_ * turns_a_block();
    if (config_.late_preprocess) params.preprocess_tiles = static_cast<std::int32_t>(preprocess_tiles());
    params.bias_places = {p_.bias_dims.batch, p_.bias_dims.head, p_.bias_dims.query};
    if (config_.split || params.shares > 1)
      params.dk_accum_a_block = dk_accum_a_block(), params.dv_accum_a_block = dv_accum_a_block();
    std::int64_t blocks = key_blocks(p_, config_, device_) * splits_;
    if (config_.persistent) blocks = std::min<std::int64_t>(blocks, device_.multiprocessors);
    const gpu::Extent3 grid{static_cast<std::uint32_t>(blocks)};
    gpu::Launch* const launch =
        portable::has_functions(p_)
            ? portable::launch_with_functions<Bwd>(p_, gpu::Family::sm90, config_, grid, params, tiles_.classes,
                                                   bind_bwd_with_tables, builder_, function_use())
            : builder_.launch<Bwd>(gpu::Family::sm90, config_, grid, params,
                                   rounds_dq() ? bind_bwd_that_rounds : bind_bwd);
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
    device::HopperBwdConvertDqConfig c;
    c.q_type = config_.q_type;
    c.head_dim = config_.head_dim;
    c.exact_dims = config_.exact_dims;
    c.lengths = config_.lengths;
    c.waves = c.kRows / device::kDqRows;
    c.own_dq = config_.own_dq;
    device::HopperBwdConvertDqParams params{};
    params.shape = shape_;
    params.grid = device::tile_grid(query_tiles_, 1, p_.num_heads_q, portable::group_of(p_));
    params.rows_a_head = rows_a_head_;
    params.dq_accum_a_head = rows_a_head_ * config_.head_dim;
    builder_.launch<BwdConvertDq>(gpu::Family::sm80, c, query_grid(), params, bind_convert_dq);
  }

  void add_dbias() {
    device::BwdDbiasParams params{};
    params.shape = shape_;
    std::ranges::copy(operations::attention::bias_shape(p_), params.dbias_shape);
    const auto bind = [](const void* call, void* block) {
      portable::bind(call_of(call), *static_cast<device::BwdDbiasParams*>(block));
    };
    const device::BwdDbiasConfig config = portable::bwd_dbias_config(p_, traits_);
    const gpu::Extent3 grid{static_cast<std::uint32_t>(portable::dbias_blocks(p_, config))};
    if (portable::has_functions(p_)) {
      const auto bind_with_tables = [](const void* call, void* block) {
        auto& with = *static_cast<device::WithTables<device::BwdDbiasParams>*>(block);
        portable::bind(call_of(call), static_cast<device::BwdDbiasParams&>(with));
        portable::bind_tables(call_of(call), with.tables);
      };
      portable::launch_with_functions<portable::BwdDbias>(p_, gpu::Family::sm80, config, grid, params, {},
                                                          bind_with_tables, builder_);
    } else {
      builder_.launch<portable::BwdDbias>(gpu::Family::sm80, config, grid, params, bind);
    }
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

  /// Of a head's queries.
  [[nodiscard]] std::int64_t preprocess_tiles() const {
    return ceil_div(p_.seqlen_q, std::int64_t{device::preprocess_config(config_).tile_rows()});
  }
  /// Of tiles of keys that are scheduled, and of queries to be rounded.
  [[nodiscard]] std::int64_t counters() const { return config_.persistent + config_.rounds; }
  /// Of the warps that hold a tile's dk and dv, which several query heads add up.
  [[nodiscard]] std::int64_t gradient_turns() const {
    return head_shares(p_, config_, device_) > 1 ? tiles_of_keys(p_, config_) * device::kGradientWarps : 0;
  }
  /// Whether blocks of the gradients' own launch do.
  [[nodiscard]] bool rounds_dq() const { return config_.rounds || config_.last_rounds; }
  /// Of the tiles of queries that a block of the preprocess has.
  [[nodiscard]] std::int64_t turns_a_block() const {
    const std::int64_t tiles = device::HopperBwdPreprocessConfig::kRows / config_.block_m;
    return config_.ordered ? tiles * config_.turns_a_tile() : config_.rounds;
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
  std::int64_t splits_;  // parts that the queries of a tile of keys come in
  portable::MaskTilesStep tiles_;
  gpu::LoweringBuilder builder_;
};

std::string feature_refusal(const Problem& p) {
  const auto missing = operations::attention::required_features(p).minus(backward_features());
  if (missing.empty()) return {};
  return concat("does not support ", operations::attention::to_string(missing), " in the backward pass");
}

std::string functions_refusal(const Problem& p, const device::HopperBwdConfig& config) {
  constexpr std::int64_t kMost = 128;
  if (!portable::has_functions(p) || !config.shares_keys) return {};
  return concat(p.score_mod.empty() ? "mask_mod" : "score_mod", ": head_dim and head_dim_v must be <= ", kMost,
                " in the backward pass (got ", p.head_dim, " and ", p.head_dim_v, ")");
}

std::string size_refusal(const Problem& p, const device::HopperBwdConfig& config,
                         const core::DeviceDescription& device) {
  const std::uint32_t shared_bytes = Bwd::shared_bytes(config, gpu::Family::sm90);
  if (shared_bytes > device.shared_bytes) {
    return concat("needs ", shared_bytes, " bytes of shared memory a block, ", device.architecture, " has ",
                  device.shared_bytes);
  }
  constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30;
  const std::int64_t blocks = key_blocks(p, config, device);
  if (blocks > kMostBlocks) return concat("tiles of keys must be <= 2^30 (got ", blocks, ")");
  return {};
}

}  // namespace

operations::attention::FeatureSet backward_features() {
  using enum operations::attention::Feature;
  return {bf16,       f16,         backward,     gqa,           head_dim_v,
          packed,     window_left, window_right, top_left,      scale_sign,
          softcap,    bias,        bias_boolean, dbias,         sink,
          alibi,      dropout,     seed_tensor,  seqused_q,     seqused_k,
          leftpad_k,  dlse,        dsink,        deterministic, batch_invariant,
          clear_rest, score_mod,   mask_mod,     block_mask};
}

gpu::Outcome lower_backward(const Problem& p, const core::DeviceDescription& device) {
  if (std::string reason = feature_refusal(p); !reason.empty()) return {{}, std::move(reason)};
  const std::string* tuned = tuned_name(p, device);
  const BwdSchedule schedule = tuned != nullptr ? tuned_bwd_schedule(p, device, *tuned) : bwd_schedule(p, device);
  std::string reason = functions_refusal(p, schedule.config);
  if (reason.empty()) reason = size_refusal(p, schedule.config, device);
  return reason.empty() ? BackwardLowerer(p, schedule, device).lower() : gpu::Outcome{{}, std::move(reason)};
}

}  // namespace tilewise::backends::hopper
