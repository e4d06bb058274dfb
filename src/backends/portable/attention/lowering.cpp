// Which kernels a problem takes; see lowering.hpp.
#include "backends/portable/attention/lowering.hpp"

#include <algorithm>
#include <limits>

#include "backends/portable/attention/bind.hpp"
#include "backends/portable/attention/block_states.hpp"
#include "backends/portable/attention/clear_rest.hpp"
#include "backends/portable/attention/estimate.hpp"
#include "backends/portable/attention/functions.hpp"
#include "backends/portable/attention/launch_with_functions.hpp"
#include "backends/portable/attention/mask_tiles.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "backends/portable/attention/selected_keys.hpp"
#include "backends/portable/attention/splits.hpp"
#include "backends/portable/attention/stagger.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/rules.hpp"
#include "operations/attention/score_functions.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div, core::concat;

constexpr std::int64_t kMostHeadDim = 256;  // accumulators of more do not fit a lane's registers
constexpr std::int64_t kMostBlocks = std::numeric_limits<std::int32_t>::max();

class Lowerer {
 public:
  Lowerer(const Problem& problem, const DeviceTraits& traits)
      : p_(problem),
        traits_(traits),
        each_query_(each_query_of(problem)),
        estimator_(each_query_, traits),
        shape_(operations::attention::shape_of(problem)) {}

  Outcome lower() {
    estimated_us_ += add_block_states(p_, traits_, builder_);
    if (p_.operation == Operation::attention_forward) {
      lower_forward();
    } else {
      lower_backward();
    }
    estimated_us_ += add_clear_rest(p_, traits_, builder_);
    Outcome outcome{builder_.finish(), refusal_};
    outcome.lowering.estimated_us = std::max(estimated_us_, Estimator::kLaunchUs);  // of no launch, a moment too
    return outcome;
  }

 private:
  /// Adds a launch over tiles x splits x heads x batches blocks, which takes so long on the device.
  template <typename Kernel>
  void add(const typename Kernel::Config& config, typename Kernel::Params params, std::int64_t tiles,
           std::int64_t splits, std::int64_t heads, std::int64_t batches, double us) {
    params.shape = shape_;
    const std::int64_t blocks = tiles * splits * heads * batches;
    if (blocks > kMostBlocks)
      refusal_ = concat(Kernel::kName, " must have <= ", kMostBlocks, " blocks (got ", blocks, ")");
    if (!refusal_.empty()) return;
    if constexpr (requires { params.grid; }) {
      params.grid = device::tile_grid(tiles, splits, heads, group_of(p_));
    }
    const gpu::Extent3 grid{static_cast<std::uint32_t>(blocks)};
    if (!launch<Kernel>(config, grid, params)) return;
    estimated_us_ += Estimator::kLaunchUs + us;
    if (fits<Kernel>(config, traits_) || !refusal_.empty()) return;
    refusal_ = concat(Kernel::kName, " needs ", Kernel::shared_bytes(config, traits_.family),
                      " bytes of shared memory a block, ", traits_.architecture, " has ", traits_.shared_bytes);
  }

  /// Whether there is anything to launch. Kernels that see scores have the problem's functions, if any.
  template <typename Kernel>
  bool launch(const typename Kernel::Config& config, gpu::Extent3 grid, const typename Kernel::Params& params) {
    if constexpr (requires { typename Kernel::Config::Functions; }) {
      if (has_functions(p_)) {
        gpu::Launch* const launched = launch_with_functions<Kernel>(p_, traits_.family, config, grid, params,
                                                                    tile_classes_, bind_with_tables<Kernel>, builder_);
        if (launched != nullptr && !definitions_.empty()) launched->key.definitions = definitions_;
        return launched != nullptr;
      }
    }
    const auto bind_params = [](const void* call, void* block) {
      bind(*static_cast<const device::AttentionParams*>(call), *static_cast<typename Kernel::Params*>(block));
    };
    return builder_.launch<Kernel>(traits_.family, config, grid, params, bind_params) != nullptr;
  }

  template <typename Kernel>
  static void bind_with_tables(const void* block_of_call, void* block) {
    const auto& call = *static_cast<const device::AttentionParams*>(block_of_call);
    auto& params = *static_cast<typename WithFunctions<Kernel>::Params*>(block);
    bind(call, static_cast<typename Kernel::Params&>(params));
    bind_tables(call, params.tables);
  }

  /// What mask_mod leaves of tiles of a kernel that is added next.
  void add_mask_tiles(std::int64_t own_rows, std::int64_t streamed_rows, bool keys_own) {
    device::MaskTilesConfig config;
    config.own = static_cast<std::int32_t>(own_rows);
    config.streamed = static_cast<std::int32_t>(streamed_rows);
    config.keys_own = keys_own;
    const MaskTilesStep step = portable::add_mask_tiles(p_, traits_, config, builder_);
    tile_classes_ = step.classes;
    estimated_us_ += step.estimated_us;
  }

  void lower_forward() {
    device::ForwardConfig config = forward_config(p_, traits_);
    stagger(config, p_, traits_);
    const std::int64_t heads = config.pack_gqa ? p_.num_heads_k : p_.num_heads_q;
    const std::int64_t tiles = row_tiles(p_, config);
    const std::int64_t splits =
        forward_splits(each_query_, traits_, config, tiles * heads * p_.batch_size, blocks_at_once(config));
    config.split = splits > 1;
    if (config.split) config.sink = 0;
    if (!config.pack_gqa) add_mask_tiles(config.block_m(), config.block_n, false);
    add<Forward>(config, {}, tiles, splits, heads, p_.batch_size,
                 estimator_.forward_us(config, tiles * splits * heads * p_.batch_size, splits));
    if (config.split) add_combine(splits);
    builder_.append_schedule(concat(config.block_m(), "x", config.block_n, " tiles, ", config.waves, " waves, ",
                                    config.stages, config.stages == 1 ? " stage" : " stages", rows_word(config),
                                    config.staggered ? ", staggered" : "",
                                    splits > 1 ? concat(", ", splits, " splits") : std::string()));
  }

  void add_combine(std::int64_t splits) {
    const device::CombineConfig config = combine_config(p_);
    device::CombineParams params{};
    params.num_splits = splits;
    add<Combine>(config, params, combine_tiles(p_, config, splits, traits_.family), 1, p_.num_heads_q, p_.batch_size,
                 estimator_.combine_us(splits));
  }

  void lower_backward() {
    const bool fuses = fuses_gradients(p_, traits_), fuses_dq = fuses && accumulates_dq(p_);
    const device::BwdConfig config = fuses ? bwd_config(p_, traits_) : device::BwdConfig{};
    const std::int64_t dq_tiles = fuses_dq ? ceil_div(p_.seqlen_q, config.block_m) : 0;
    const std::int64_t dq_accum_a_head = dq_tiles * config.block_m * config.head_dim;
    add_preprocess(dq_accum_a_head);
    if (fuses) {
      add_bwd(config, dq_accum_a_head);
    } else if (p_.top_k > 0 && (p_.dk || p_.dv)) {
      add_selected_dkdv();
    } else if (p_.dk || p_.dv) {
      add_dkdv();
    }
    if (fuses_dq) {
      device::BwdConvertDqParams params{};
      params.dq_accum_a_head = dq_accum_a_head;
      add<BwdConvertDq>(bwd_convert_dq_config(p_, config), params, dq_tiles, 1, p_.num_heads_q, p_.batch_size,
                        estimator_.convert_dq_us());
    } else if (p_.dq) {
      add_dq();
    }
    if (p_.dbias) add_dbias();
    if (p_.dtables != 0) add_dtables();
    if (p_.dsink) add<BwdDsink>(bwd_dsink_config(p_), {}, 1, 1, p_.num_heads_q, 1, estimator_.dsink_us());
  }

  void add_preprocess(std::int64_t dq_accum_a_head) {
    const device::BwdPreprocessConfig config = bwd_preprocess_config(p_);
    const auto wave = static_cast<std::int32_t>(gpu::lanes(traits_.family));
    const std::int32_t rows = config.waves * wave / device::lanes_a_delta_row(config, wave);
    device::BwdPreprocessParams params{};
    params.dq_accum_a_head = dq_accum_a_head;
    add<BwdPreprocess>(config, params, ceil_div(p_.seqlen_q, rows), 1, p_.num_heads_q, p_.batch_size,
                       estimator_.preprocess_us(dq_accum_a_head > 0));
  }

  void add_bwd(device::BwdConfig config, std::int64_t dq_accum_a_head) {
    const std::int64_t tiles = ceil_div(p_.seqlen_k, config.block_n()), blocks = tiles * p_.num_heads_k * p_.batch_size;
    const std::int64_t steps = ceil_div(p_.seqlen_q, config.block_m) * group_of(p_);
    const std::int64_t splits = query_splits(p_, blocks, steps, traits_.multiprocessors);
    config.split = splits > 1;
    device::BwdParams params{};
    params.dq_accum_a_head = dq_accum_a_head;
    if (config.split) {
      params.dk_accum_a_block = std::int64_t{config.block_n()} * config.head_dim;
      params.dv_accum_a_block = std::int64_t{config.block_n()} * config.head_dim_v;
    }
    add_mask_tiles(config.block_n(), config.block_m, true);
    add<Bwd>(config, params, tiles, splits, p_.num_heads_k, p_.batch_size,
             estimator_.bwd_us(config, blocks * splits, splits));
    describe<Bwd>(config.block_n(), config.block_m);
    if (!config.split) return;
    builder_.extend_schedule(concat(", ", splits, " splits"));
    constexpr std::int64_t kSides = 2;  // dk and dv
    device::BwdConvertDkdvParams convert{};
    convert.num_splits = splits;
    convert.dk_accum_a_block = params.dk_accum_a_block;
    convert.dv_accum_a_block = params.dv_accum_a_block;
    add<BwdConvertDkdv>(bwd_convert_dkdv_config(p_, config), convert, tiles, kSides, p_.num_heads_k, p_.batch_size,
                        estimator_.convert_dkdv_us(splits));
  }

  void add_dkdv() {
    const device::BwdDkdvConfig config = bwd_dkdv_config(p_, traits_);
    add_mask_tiles(config.block_n(), config.block_m, true);
    launch_dkdv(config, {}, ceil_div(p_.seqlen_k, config.block_n()));
  }

  /// Over so many tiles of keys: dk and dv together, or one after the other.
  void launch_dkdv(device::BwdDkdvConfig config, const device::BwdDkdvParams& params, std::int64_t tiles) {
    const bool apart = !config.wants_dv;
    const auto launch = [&](bool dk, bool dv) {
      config.wants_dk = dk;
      config.wants_dv = dv;
      add<BwdDkdv>(config, params, tiles, 1, p_.num_heads_k, p_.batch_size,
                   estimator_.dkdv_us(config, tiles * p_.num_heads_k * p_.batch_size));
    };
    if (apart && p_.dk && p_.dv) {
      launch(true, false);
      launch(false, true);
    } else {
      launch(p_.dk, p_.dv);
    }
    describe<BwdDkdv>(config.block_n(), config.block_m);
  }

  /// Sums of each key, which the blocks of all queries add to, cleared before and rounded after.
  void add_selected_dkdv() {
    const device::BwdDkdvConfig config = bwd_dkdv_config(p_, traits_);
    const bool packed = p_.layout == Layout::thd;
    device::BwdDkdvParams params{};
    params.dk_accum_a_row = p_.dk ? config.head_dim : 0;
    params.dv_accum_a_row = p_.dv ? config.head_dim_v : 0;
    params.accum_rows = packed ? p_.total_k : p_.batch_size * p_.seqlen_k;
    params.accum_rows_a_batch = packed ? 0 : p_.seqlen_k;
    if (p_.dk) builder_.clear(kSelectedDk);
    if (p_.dv) builder_.clear(kSelectedDv);
    launch_dkdv(config, params, p_.seqlen_q * ceil_div(p_.top_k, config.block_n()));
    builder_.extend_schedule(", keys selected");
    constexpr std::int64_t kSides = 2, kRows = 32;  // dk and dv; of a block
    device::BwdConvertSelectedParams convert{};
    convert.dk_accum_a_row = params.dk_accum_a_row;
    convert.dv_accum_a_row = params.dv_accum_a_row;
    convert.accum_rows = params.accum_rows;
    convert.accum_rows_a_batch = params.accum_rows_a_batch;
    convert.rows = kRows;
    add<BwdConvertSelected>(bwd_convert_selected_config(p_), convert, ceil_div(p_.seqlen_k, kRows), kSides,
                            p_.num_heads_k, p_.batch_size, Estimator(p_, traits_).convert_dkdv_us(1));
  }

  void add_dq() {
    const device::BwdDqConfig config = bwd_dq_config(p_, traits_);
    const std::int64_t tiles = row_tiles(p_, config), heads = config.selects ? p_.num_heads_k : p_.num_heads_q;
    add_mask_tiles(config.block_m(), config.block_n, false);
    add<BwdDq>(config, {}, tiles, 1, heads, p_.batch_size, estimator_.dq_us(config, tiles * heads * p_.batch_size));
    describe<BwdDq>(config.block_m(), config.block_n);
  }

  void add_dbias() {
    const device::BwdDbiasConfig config = bwd_dbias_config(p_, traits_);
    const std::int64_t blocks = dbias_blocks(p_, config);
    device::BwdDbiasParams params{};
    std::ranges::copy(operations::attention::bias_shape(p_), params.dbias_shape);
    add<BwdDbias>(config, params, blocks, 1, 1, 1, estimator_.dbias_us(config, blocks));
  }

  /// Sums that are cleared, added to look-up by look-up, and rounded into the gradients.
  void add_dtables() {
    for (std::size_t i = 0; i < p_.tables.size(); ++i)
      if (operations::attention::wants_table_gradient(p_, i)) add_table_sums(i, false);
    const device::BwdDtableConfig config = bwd_dtable_config(p_, traits_);
    const std::int64_t tiles = ceil_div(p_.seqlen_q, config.block_m());
    for (const expression::LookUpDerivative& look_up : operations::attention::wanted_look_ups(p_)) {
      device::BwdDtableParams params{};
      params.table = static_cast<std::int32_t>(look_up.table);
      params.sums_size = sums_size(look_up.table);
      if (params.sums_size == 0) continue;
      definitions_ = look_up_definitions(p_, look_up);
      add<BwdDtable>(config, params, tiles, 1, p_.num_heads_q, p_.batch_size,
                     estimator_.dbias_us(config, tiles * p_.num_heads_q * p_.batch_size));
      definitions_.clear();
    }
    for (std::size_t i = 0; i < p_.tables.size(); ++i)
      if (operations::attention::wants_table_gradient(p_, i)) add_table_sums(i, true);
  }

  /// Of a table's elements.
  [[nodiscard]] std::int64_t sums_size(std::size_t table) const {
    std::int64_t elements = 1;
    for (std::size_t d = 0; d < static_cast<std::size_t>(p_.tables[table].rank); ++d)
      elements *= p_.tables[table].shape[d];
    return elements;
  }

  void add_table_sums(std::size_t table, bool stores) {
    const TableShape& shape = p_.tables[table];
    device::BwdTableSumsConfig config;
    config.stores = stores;
    if (stores) config.element = table_element_of(shape.dtype);
    device::BwdTableSumsParams params{};
    params.table = static_cast<std::int32_t>(table);
    params.sums_size = sums_size(table);
    if (params.sums_size == 0) return;
    std::ranges::fill(params.sizes, 1);
    for (std::size_t d = 0; d < static_cast<std::size_t>(shape.rank); ++d)
      params.sizes[d] = static_cast<std::int32_t>(shape.shape[d]);
    if (stores) params.element_bytes = static_cast<std::int32_t>(size_of(shape.dtype));
    constexpr std::int64_t kElementsABlock = 1024;
    const std::int64_t blocks =
        std::clamp<std::int64_t>(params.sums_size / kElementsABlock, 1, 4 * traits_.multiprocessors);
    params.blocks = static_cast<std::int32_t>(blocks);
    add<BwdTableSums>(config, params, blocks, 1, 1, 1, 1.0);
  }

  template <typename Kernel>
  void describe(std::int32_t own, std::int32_t streamed) {
    builder_.append_schedule(concat(Kernel::kName, " ", own, "x", streamed, " tiles"));
  }

  const Problem& p_;
  const DeviceTraits& traits_;
  Problem each_query_;
  Estimator estimator_;
  device::AttentionShape shape_;
  gpu::LoweringBuilder builder_{traits_.overlaps_steps};
  std::string refusal_, definitions_;  // the second: of the kernel that is added next, where they are not the problem's
  device::TileClasses<const std::uint8_t> tile_classes_{};  // of the kernel that is added next
  double estimated_us_ = 0.0;
};

/// Limits that no kernel passes.
std::string limit_refusal(const Problem& p) {
  if (p.head_dim > kMostHeadDim || p.head_dim_v > kMostHeadDim) {
    return concat("head_dim and head_dim_v must be <= ", kMostHeadDim, " (got ", p.head_dim, " and ", p.head_dim_v,
                  ")");
  }
  const std::int64_t longest = std::max(p.seqlen_q * group_of(p), p.seqlen_k);
  constexpr std::int64_t kLongest = std::int64_t{1} << 29;
  if (std::string refusal = selection_refusal(p.top_k); !refusal.empty()) return refusal;
  if (std::string refusal = selected_gradients_refusal(p); !refusal.empty()) return refusal;
  if (longest > kLongest) return concat("rows of a sequence must be <= 2^29 (got ", longest, ")");
  if (p.dtables != 0 && p.deterministic) return "dtables must not be deterministic, since sums come in any order";
  return functions_refusal(p);
}

}  // namespace

Outcome lower(const Problem& problem, const core::DeviceDescription& device, Family family) {
  if (std::string reason = limit_refusal(problem); !reason.empty()) return {{}, std::move(reason)};
  return Lowerer(with_block_states(problem), traits_of(device, family)).lower();
}

}  // namespace tilewise::backends::portable
