// Which kernels a KV cache problem takes; see lowering.hpp.
#include "backends/portable/kv_cache/lowering.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "backends/portable/alignment.hpp"
#include "backends/portable/attention/bind.hpp"
#include "backends/portable/attention/block_states.hpp"
#include "backends/portable/attention/estimate.hpp"
#include "backends/portable/attention/functions.hpp"
#include "backends/portable/attention/kernels.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "backends/portable/attention/selected_keys.hpp"
#include "backends/portable/kv_cache/bind.hpp"
#include "backends/portable/kv_cache/key_parts.hpp"
#include "backends/portable/kv_cache/schedule.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "operations/attention/call.hpp"
#include "operations/kv_cache/rules.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div, core::concat;
using operations::kv_cache::appends_alone, operations::kv_cache::KvCacheParams;

constexpr double kAppendUs = 1.5;  // of a row that is rotated and stored, beside its bytes
constexpr std::int64_t kMostPlaces = std::numeric_limits<std::int32_t>::max();

class Lowerer {
 public:
  Lowerer(const KvCacheProblem& problem, const DeviceTraits& traits)
      : p_(problem),
        traits_(traits),
        attention_(attention_of(problem)),
        each_query_(each_query_of(attention_)),
        estimator_(each_query_, traits) {}

  Outcome lower() {
    if (const std::string refusal = limits(); !refusal.empty()) return {{}, refusal};
    if (appends_alone(p_)) {
      add_append();
    } else {
      add_attention();
    }
    Outcome outcome{builder_.finish(), refusal_};
    outcome.lowering.estimated_us = std::max(estimated_us_, Estimator::kLaunchUs);
    return outcome;
  }

 private:
  [[nodiscard]] std::string limits() const {
    const std::int64_t places = operations::kv_cache::capacity_of(p_);
    if (places > kMostPlaces) return concat("a sequence must have <= ", kMostPlaces, " places (got ", places, ")");
    if (std::string refusal = selection_refusal(p_.top_k); !refusal.empty()) return refusal;
    if (!has_functions(attention_)) return {};
    const std::int64_t rows = std::max(places, p_.seqlen_q);
    if (rows > kMostFunctionRows) return concat("a sequence with functions must have <= 2^29 places (got ", rows, ")");
    return functions_refusal(attention_);
  }

  /// Null where there are no blocks.
  template <typename Kernel>
  gpu::Launch* launch(const typename Kernel::Config& config, const gpu::Extent3& grid,
                      const typename Kernel::Params& params) {
    const auto bind_params = [](const void* call, void* block) {
      bind(*static_cast<const KvCacheParams*>(call), *static_cast<typename Kernel::Params*>(block));
    };
    return builder_.launch<Kernel>(traits_.family, config, grid, params, bind_params);
  }
  template <typename Kernel, typename Params = typename Kernel::Params>
  gpu::Launch* launch_with_functions(const typename Kernel::Config& config, const gpu::Extent3& grid,
                                     const Params& own) {
    using Functions = WithFunctions<Kernel>;
    const auto bind_params = [](const void* block_of_call, void* block) {
      const auto& call = *static_cast<const KvCacheParams*>(block_of_call);
      auto& params = *static_cast<typename Functions::Params*>(block);
      bind(call, static_cast<Params&>(params));
      bind_tables(call.tables, params.tables);
    };
    typename Functions::Params params{own, tile_classes_, {}};
    set_tables(attention_, params.tables);
    gpu::Launch* const launch = builder_.launch<Functions>(traits_.family, config, grid, params, bind_params);
    if (launch != nullptr) launch->key.definitions = function_definitions(attention_, {QueryIndex::position});
    return launch;
  }

  template <typename Kernel>
  gpu::Launch* add(const typename Kernel::Config& config, typename Kernel::Params params, std::int64_t blocks,
                   double us) {
    params.shape = operations::attention::shape_of(attention_);
    if (blocks > kMostPlaces) {
      refusal_ = concat(Kernel::kName, " must have <= ", kMostPlaces, " blocks (got ", blocks, ")");
      return nullptr;
    }
    const gpu::Extent3 grid{static_cast<std::uint32_t>(blocks)};
    gpu::Launch* launched = nullptr;
    if constexpr (std::is_same_v<Kernel, KvCacheForward>) {
      launched = has_functions(attention_) ? launch_with_functions<Kernel>(config, grid, params)
                                           : launch<Kernel>(config, grid, params);
    } else {
      launched = launch<Kernel>(config, grid, params);
    }
    if (launched == nullptr) return nullptr;
    estimated_us_ += Estimator::kLaunchUs + us;
    if (fits<Kernel>(config, traits_) || !refusal_.empty()) return launched;
    refusal_ = concat(Kernel::kName, " needs ", Kernel::shared_bytes(config, traits_.family),
                      " bytes of shared memory a block, ", traits_.architecture, " has ", traits_.shared_bytes);
    return launched;
  }

  /// Blocks that begin while the step before them ends find multiprocessors taken, and would crowd on the others: 512
  /// queries on 4,096 keys took 192 us instead of 122 (H200). Shared memory keeps each to its share.
  void spread(gpu::Launch& launch) const {
    constexpr std::int64_t kReservedBytes = 1024;  // of a block, beside its own
    const std::int64_t share = ceil_div(static_cast<std::int64_t>(launch.grid.count()), traits_.multiprocessors);
    const std::int64_t one_more = (static_cast<std::int64_t>(traits_.shared_bytes) + kReservedBytes) / (share + 1);
    if (one_more <= kReservedBytes) return;
    launch.least_shared_bytes = static_cast<std::uint32_t>(one_more - kReservedBytes + 1);
  }

  void add_append() {
    const device::AppendKvConfig config = append_kv_config(p_);
    const std::int64_t keys = operations::kv_cache::rows_of_new_keys(p_) * p_.num_heads_k;
    device::AppendKvParams params{};
    const std::int64_t rows = keys * (p_.mla ? 1 : 2);
    const double bytes = 4.0 * static_cast<double>(rows) * static_cast<double>(p_.head_dim);
    const std::int64_t blocks = config.vector_rows ? ceil_div(keys * append_units_of(p_), config.waves * lanes())
                                                   : ceil_div(rows, config.waves);
    add<AppendKv>(config, params, blocks, kAppendUs + 1e-3 * bytes / traits_.memory_gigabytes_per_second);
    builder_.append_schedule(config.vector_rows ? concat("append by 16 bytes, ", config.waves, " waves")
                                                : concat("append ", config.waves, " rows a block"));
  }

  [[nodiscard]] std::int64_t lanes() const { return gpu::lanes(traits_.family); }

  [[nodiscard]] device::TileGrid grid_of(std::int64_t tiles, std::int64_t splits, std::int64_t heads) const {
    return device::tile_grid(tiles, splits, heads, group_of(attention_));
  }

  void add_attention() {
    estimated_us_ +=
        add_block_states(operations::kv_cache::blocked_scores(p_), traits_, builder_, bind_block_states<KvCacheParams>);
    device::KvCacheForwardConfig config = kv_cache_forward_config(p_, traits_);
    if (p_.append && !config.appends) add_append();
    add_forward(config);
  }

  void add_forward(device::KvCacheForwardConfig config) {
    const std::int64_t heads = (config.pack_gqa ? p_.num_heads_k : p_.num_heads_q) * config.v_parts;
    const std::int64_t tiles = row_tiles(attention_, config), blocks = tiles * heads * p_.batch_size;
    const ScheduledBlocks blocks_taken{heads, blocks_at_once(config), config.block_n};
    const device::KeySchedule key_schedule =
        tiles == 1 ? schedule_keys(p_, traits_, blocks_taken) : device::KeySchedule{};
    const bool scheduled = key_schedule.places > 0;
    const std::int64_t splits =
        scheduled ? mean_parts(key_schedule, p_.batch_size) : key_splits(p_, traits_, config, heads, tiles);
    config.schedules_keys = scheduled;
    config.split = scheduled || splits > 1;
    if (config.split && !scheduled) config.sink = 0;  // else the only part of a sequence joins it
    device::KvCacheForwardParams params{};
    params.grid = grid_of(tiles, scheduled ? 1 : splits, heads);
    params.key_schedule = key_schedule;
    params.appends = config.appends;
    const double key_bytes = config.cache_type == device::kE4m3 ? 1.0 : 2.0;
    const double us =
        estimator_.forward_us(config, blocks * splits, splits, key_bytes) + (config.appends ? kAppendUs : 0.0);
    const std::int64_t all_blocks = scheduled ? key_schedule.places * heads : blocks * splits;
    add_mask_tiles(config, tiles);
    gpu::Launch* const launch = add<KvCacheForward>(config, params, all_blocks, us);
    // It reads at once what steps before it have found.
    if (launch != nullptr && (tile_classes_.bytes > 0 || operations::has_block_mask(p_))) launch->programmatic = false;
    if (launch != nullptr && launch->programmatic) spread(*launch);
    if (config.split) add_combine(config, key_schedule, splits);
    builder_.append_schedule(concat(config.block_m(), "x", config.block_n, " tiles, ", config.waves, " waves, ",
                                    config.stages, config.stages == 1 ? " stage" : " stages", rows_word(config),
                                    config.appends ? ", appends" : "",
                                    config.multiplies_bytes ? ", fp8 widened in products" : "",
                                    config.direct_operands ? ", tiles in registers" : "",
                                    config.v_parts > 1 ? concat(", ", config.v_parts, " parts of v") : std::string(),
                                    scheduled    ? concat(", ", key_schedule.places, " parts scheduled by lengths")
                                    : splits > 1 ? concat(", ", splits, " splits")
                                                 : std::string()));
  }

  /// What mask_mod leaves of the tiles of the forward kernel, which is added next.
  void add_mask_tiles(const device::KvCacheForwardConfig& forward, std::int64_t tiles) {
    if (!knows_tiles(attention_)) return;
    device::KvCacheMaskTilesConfig config;
    config.own = forward.block_m();
    config.streamed = forward.block_n;
    config.packs_heads = forward.pack_gqa;
    const std::int64_t streamed = ceil_div(operations::kv_cache::capacity_of(p_), std::int64_t{config.streamed});
    const std::int64_t splits = ceil_div(streamed, std::int64_t{config.waves});
    device::KvCacheMaskTilesParams params{};
    params.shape = operations::attention::shape_of(attention_);
    params.grid = grid_of(tiles, splits, 1);
    params.classes = {nullptr, tiles * streamed, p_.batch_size * tiles * streamed, static_cast<std::int32_t>(streamed),
                      device::kQueryTiles};
    const gpu::Extent3 grid{static_cast<std::uint32_t>(tiles * splits * p_.batch_size)};
    if (launch_with_functions<KvCacheMaskTiles>(config, grid, params) == nullptr) return;
    const auto& c = params.classes;
    tile_classes_ = {nullptr, c.batch_stride, c.bytes, c.streamed, c.rows};
    estimated_us_ += Estimator::kLaunchUs + estimator_.mask_tiles_us(p_.batch_size);
  }

  void add_combine(const device::KvCacheForwardConfig& forward, const device::KeySchedule& key_schedule,
                   std::int64_t splits) {
    device::KvCacheCombineConfig config = kv_cache_combine_config(attention_);
    config.seqlens_alone = forward.seqlens_alone;
    config.schedules_keys = forward.schedules_keys;
    if (config.schedules_keys) config.block_n = forward.block_n;
    // Of scheduled keys any row may have many parts.
    const std::int64_t most = config.schedules_keys ? device::kMostSplits : splits;
    const std::int64_t tiles = combine_tiles(attention_, config, most, traits_.family);
    device::KvCacheCombineParams params{};
    params.num_splits = splits;
    params.key_schedule = key_schedule;
    params.grid = grid_of(tiles, 1, p_.num_heads_q);
    add<KvCacheCombine>(config, params, tiles * p_.num_heads_q * p_.batch_size, estimator_.combine_us(splits));
  }

  const KvCacheProblem& p_;
  const DeviceTraits& traits_;
  Problem attention_, each_query_;
  Estimator estimator_;
  gpu::LoweringBuilder builder_{traits_.overlaps_steps};
  device::TileClasses<const std::uint8_t> tile_classes_{};
  std::string refusal_;
  double estimated_us_ = 0.0;
};

}  // namespace

Outcome lower(const KvCacheProblem& problem, const core::DeviceDescription& device, gpu::Family family) {
  const DeviceTraits traits = traits_of(device, family);
  return Lowerer(problem, traits).lower();
}

namespace {

bool tables_are_aligned(const operations::kv_cache::RotaryTables& r) {
  if (!operations::kv_cache::rotates_in_chunks(r.dim, r.offset)) return true;
  const auto rows_of = [](const void* table, std::int64_t stride) {
    return device::Tensor4{const_cast<void*>(table), 0, stride, 0};
  };
  return rows_start_on_16_bytes(rows_of(r.cos, r.cos_stride), r.dtype) &&
         rows_start_on_16_bytes(rows_of(r.sin, r.sin_stride), r.dtype);
}

}  // namespace

bool is_aligned(const KvCacheParams& call) {
  return rows_start_on_16_bytes(call.q, call.dtype) && rows_start_on_16_bytes(call.out, call.dtype) &&
         rows_start_on_16_bytes(call.k, call.dtype) && rows_start_on_16_bytes(call.v, call.dtype) &&
         rows_start_on_16_bytes(call.k_cache, call.cache_dtype) &&
         rows_start_on_16_bytes(call.v_cache, call.cache_dtype) && tables_are_aligned(call.rotary);
}

}  // namespace tilewise::backends::portable
