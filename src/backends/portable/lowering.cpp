// Which kernels a problem takes; see lowering.hpp.
#include "backends/portable/lowering.hpp"

#include <algorithm>
#include <limits>

#include "backends/portable/estimate.hpp"
#include "backends/portable/schedule.hpp"
#include "core/message.hpp"

namespace tilewise::backends::portable {
namespace {

using core::concat, operations::attention::Feature, operations::attention::FeatureSet;

constexpr std::int64_t kMostHeadDim = 256;              // accumulators of more do not fit a lane's registers
constexpr std::int64_t kFewestTilesASplit = 2;          // below, merging costs more than idle multiprocessors
constexpr std::int64_t kFewestStepsASplit = 4;          // likewise of tiles of queries, for dk and dv
constexpr std::int64_t kFewQueries = 64;                // rows of one tile may then come from several heads
constexpr double kTileUs = 0.6, kLoneWaveTileUs = 2.0;  // of a tile of keys beside its products (H200)
constexpr double kMergeUs = 6.0;                        // launch and latency of the merge
constexpr double kMergeBytes = 12.0;  // that a float costs on its way through memory, in units of its bandwidth

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

class Lowerer {
 public:
  Lowerer(const Problem& problem, const DeviceTraits& traits) : p_(problem), traits_(traits) {}

  Lowering lower() {
    if (p_.operation == Operation::attention_forward) {
      lower_forward();
    } else {
      lower_backward();
    }
    result_.estimated_us = estimate_us(p_, traits_, result_.launches);
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::int64_t group() const { return p_.num_heads_q / std::max<std::int64_t>(p_.num_heads_k, 1); }

  void add(KernelKind kind, const device::KernelConfig& config, std::int64_t tiles, std::int64_t splits,
           std::int64_t heads, std::int64_t batches) {
    const std::int64_t blocks = tiles * splits * heads * batches;
    if (blocks == 0) return;
    Launch launch;
    launch.key = {kind, config};
    launch.blocks = static_cast<std::uint32_t>(blocks);
    launch.threads = static_cast<std::uint32_t>(config.waves) * lanes(traits_.machine);
    launch.shared_bytes = shared_bytes(kind, config, traits_.machine);
    launch.grid.num_tiles = static_cast<std::int32_t>(tiles);
    launch.grid.num_splits = static_cast<std::int32_t>(splits);
    launch.grid.heads = static_cast<std::int32_t>(heads);
    launch.grid.query_sums_a_head = query_sums_a_head_;
    launch.grid.key_splits = static_cast<std::int32_t>(key_splits_);
    launch.grid.key_sums_a_block = key_sums_a_block_;
    result_.launches.push_back(launch);
  }

  std::int64_t reserve(std::int64_t bytes) {
    const auto offset = static_cast<std::int64_t>(result_.workspace.size);
    constexpr auto kAlignment = static_cast<std::int64_t>(kWorkspaceAlignment);
    result_.workspace.size += static_cast<std::size_t>(ceil_div(bytes, kAlignment) * kAlignment);
    return offset;
  }

  /// Splits over keys where tiles of rows alone would leave multiprocessors idle: as many as make the shortest of
  /// what the forward kernel and the merge of its parts are thought to take.
  [[nodiscard]] std::int64_t splits_for(std::int64_t blocks, const device::KernelConfig& config) const {
    const std::int64_t tiles = ceil_div(p_.seqlen_k, config.tile_cols);
    const std::int64_t enough = traits_.multiprocessors * std::int64_t{blocks_at_once(config)};
    if (p_.batch_invariant || blocks == 0 || blocks >= enough) return 1;
    std::int64_t best = 1;
    double least = split_us(1, blocks, tiles, config);
    for (std::int64_t splits = 2; splits <= std::min<std::int64_t>(tiles / kFewestTilesASplit, device::kMostSplits);
         ++splits) {
      const double us = split_us(splits, blocks, tiles, config);
      if (us < least) least = us, best = splits;
    }
    return best;
  }

  [[nodiscard]] double split_us(std::int64_t splits, std::int64_t blocks, std::int64_t tiles,
                                const device::KernelConfig& config) const {
    const std::int64_t all = blocks * splits;
    const std::int64_t at_once = std::min<std::int64_t>(ceil_div(all, traits_.multiprocessors), blocks_at_once(config));
    const std::int64_t rounds = ceil_div(all, at_once * traits_.multiprocessors);
    const double flops = 2.0 * block_rows(KernelKind::forward, config) * config.tile_cols *
                         static_cast<double>(config.head_dim + config.head_dim_v);
    const double rate = traits_.gflops / traits_.multiprocessors / static_cast<double>(at_once);
    const double tile_us = (config.waves == 1 ? kLoneWaveTileUs : kTileUs) + 1e-3 * flops / rate;
    const double forward_us = static_cast<double>(rounds * ceil_div(tiles, splits)) * tile_us;
    if (splits == 1) return forward_us;
    const double rows = static_cast<double>(p_.batch_size * p_.num_heads_q * p_.seqlen_q);
    const double bytes = kMergeBytes * static_cast<double>(splits) * rows * static_cast<double>(p_.head_dim_v);
    return forward_us + kMergeUs + 1e-3 * bytes / traits_.gigabytes_per_second;
  }

  void lower_forward() {
    device::KernelConfig config = configure(KernelKind::forward, p_, traits_);
    config.packed_heads = group() > 1 && p_.seqlen_q <= kFewQueries;
    const std::int64_t rows = p_.seqlen_q * (config.packed_heads ? group() : 1);
    const std::int64_t heads = config.packed_heads ? p_.num_heads_k : p_.num_heads_q;
    const std::int64_t tiles = row_tiles(KernelKind::forward, config, rows);
    const std::int64_t splits = splits_for(tiles * heads * p_.batch_size, config);
    config.split = splits > 1;
    if (config.split) config.sink = false;
    add(KernelKind::forward, config, tiles, splits, heads, p_.batch_size);
    if (config.split) add_merge(splits);
    result_.schedule =
        concat(block_rows(KernelKind::forward, config), "x", config.tile_cols, " tiles, ", config.waves, " waves, ",
               config.stages, config.stages == 1 ? " stage" : " stages", config.packed_heads ? ", heads packed" : "",
               splits > 1 ? concat(", ", splits, " splits") : std::string());
  }

  void add_merge(std::int64_t splits) {
    const std::int64_t rows = splits * p_.batch_size * p_.num_heads_q * p_.seqlen_q;
    result_.workspace.partial_out = reserve(4 * rows * p_.head_dim_v);
    result_.workspace.partial_lse = reserve(4 * rows);
    const device::KernelConfig config = configure(KernelKind::merge_splits, p_, traits_);
    const std::int64_t rows_a_block = splits > device::kRowSplits ? 1 : config.waves;
    add(KernelKind::merge_splits, config, ceil_div(p_.seqlen_q, rows_a_block), 1, p_.num_heads_q, p_.batch_size);
    if (!result_.launches.empty()) result_.launches.back().grid.num_splits = static_cast<std::int32_t>(splits);
  }

  void lower_backward() {
    result_.workspace.delta = reserve(4 * p_.batch_size * p_.num_heads_q * p_.seqlen_q);
    const device::KernelConfig rows = configure(KernelKind::row_delta, p_, traits_);
    const auto wave = static_cast<std::int32_t>(lanes(traits_.machine));
    const std::int32_t a_block = rows.waves * wave / device::lanes_a_delta_row(rows, wave);
    const bool fuses = fuses_gradients(p_, traits_), fuses_dq = fuses && adds_query_sums(p_);
    if (fuses_dq) reserve_query_sums();
    add(KernelKind::row_delta, rows, ceil_div(p_.seqlen_q, a_block), 1, p_.num_heads_q, p_.batch_size);
    if (fuses) {
      add_fused_gradients();
    } else if (p_.dk || p_.dv) {
      add_key_gradients();
    }
    if (fuses_dq) {
      const device::KernelConfig config = configure(KernelKind::store_query_sums, p_, traits_);
      add(KernelKind::store_query_sums, config, row_tiles(KernelKind::store_query_sums, config, p_.seqlen_q), 1,
          p_.num_heads_q, p_.batch_size);
    } else if (p_.dq) {
      const device::KernelConfig config = configure(KernelKind::query_gradient, p_, traits_);
      add(KernelKind::query_gradient, config, row_tiles(KernelKind::query_gradient, config, p_.seqlen_q), 1,
          p_.num_heads_q, p_.batch_size);
      describe(KernelKind::query_gradient, config);
    }
    if (p_.dbias) add_bias_gradient();
    if (p_.dsink) {
      const device::KernelConfig config = configure(KernelKind::sink_gradient, p_, traits_);
      add(KernelKind::sink_gradient, config, 1, 1, p_.num_heads_q, 1);
    }
  }

  /// Every launch from here on knows of them, the one that clears them too.
  void reserve_query_sums() {
    const device::KernelConfig config = configure(KernelKind::store_query_sums, p_, traits_);
    query_sums_a_head_ =
        row_tiles(KernelKind::store_query_sums, config, p_.seqlen_q) * config.tile_cols * config.head_dim;
    result_.workspace.query_sums = reserve(4 * p_.batch_size * p_.num_heads_q * query_sums_a_head_);
  }

  void add_fused_gradients() {
    constexpr KernelKind kKind = KernelKind::fused_gradient;
    device::KernelConfig config = configure(kKind, p_, traits_);
    const std::int64_t tiles = row_tiles(kKind, config, p_.seqlen_k), blocks = tiles * p_.num_heads_k * p_.batch_size;
    const std::int64_t splits = query_splits(blocks, config);
    config.split = splits > 1;
    if (config.split) {
      key_splits_ = splits;
      key_sums_a_block_ = std::int64_t{block_rows(kKind, config)} * (config.head_dim + config.head_dim_v);
      result_.workspace.key_sums = reserve(4 * blocks * splits * key_sums_a_block_);
    }
    add(kKind, config, tiles, splits, p_.num_heads_k, p_.batch_size);
    describe(kKind, config);
    if (!config.split) return;
    core::append(result_.schedule, concat(", ", splits, " splits"));
    constexpr KernelKind kStore = KernelKind::store_key_sums;
    constexpr std::int64_t kSides = 2;  // dk and dv
    add(kStore, configure(kStore, p_, traits_), tiles, kSides, p_.num_heads_k, p_.batch_size);
    key_splits_ = 0;  // what follows has none
  }

  /// Parts that the queries of a block of keys come in, where blocks are few: one block fills a multiprocessor.
  [[nodiscard]] std::int64_t query_splits(std::int64_t blocks, const device::KernelConfig& config) const {
    if (p_.batch_invariant || blocks == 0) return 1;
    const std::int64_t steps = ceil_div(p_.seqlen_q, config.tile_cols) * group();
    const std::int64_t most = std::min<std::int64_t>(steps / kFewestStepsASplit, device::kMostSplits);
    return std::clamp<std::int64_t>(traits_.multiprocessors / blocks, 1, std::max<std::int64_t>(most, 1));
  }

  void add_key_gradients() {
    device::KernelConfig config = configure(KernelKind::key_gradient, p_, traits_);
    const bool apart = !config.wants_dv;
    const auto launch = [&](bool dk, bool dv) {
      config.wants_dk = dk;
      config.wants_dv = dv;
      add(KernelKind::key_gradient, config, row_tiles(KernelKind::key_gradient, config, p_.seqlen_k), 1, p_.num_heads_k,
          p_.batch_size);
    };
    if (apart && p_.dk && p_.dv) {
      launch(true, false);
      launch(false, true);
    } else {
      launch(p_.dk, p_.dv);
    }
    describe(KernelKind::key_gradient, config);
  }

  void add_bias_gradient() {
    const device::KernelConfig config = configure(KernelKind::bias_gradient, p_, traits_);
    const auto dim = [](bool own, std::int64_t size) { return own ? size : std::int64_t{1}; };
    const std::int64_t queries = p_.bias_dims.query ? row_tiles(KernelKind::bias_gradient, config, p_.seqlen_q) : 1;
    const std::int64_t keys = p_.bias_dims.key ? ceil_div(p_.seqlen_k, config.tile_cols) : 1;
    add(KernelKind::bias_gradient, config, queries * keys, 1, dim(p_.bias_dims.head, p_.num_heads_q),
        dim(p_.bias_dims.batch, p_.batch_size));
  }

  [[nodiscard]] static std::int64_t row_tiles(KernelKind kind, const device::KernelConfig& config, std::int64_t rows) {
    return ceil_div(rows, block_rows(kind, config));
  }

  void describe(KernelKind kind, const device::KernelConfig& config) {
    result_.schedule += concat(result_.schedule.empty() ? "" : "; ", kernel_name(kind), " ", block_rows(kind, config),
                               "x", config.tile_cols, " tiles");
  }

  const Problem& p_;
  const DeviceTraits& traits_;
  Lowering result_;
  std::int64_t query_sums_a_head_ = 0, key_splits_ = 0, key_sums_a_block_ = 0;
};

/// Why one kernel can't serve, or empty.
std::string kernel_refusal(const Launch& launch, const DeviceTraits& traits) {
  if (fits(launch.key.kind, launch.key.config, traits)) return {};
  return concat(kernel_name(launch.key.kind), " needs ", launch.shared_bytes, " bytes of shared memory a block, ",
                traits.architecture, " has ", traits.shared_bytes);
}

}  // namespace

operations::attention::FeatureSet portable_features() {
  using enum operations::attention::Feature;
  return {bf16,           f16,       forward,     backward,     gqa,
          head_dim_v,     packed,    window_left, window_right, top_left,
          scale_sign,     softcap,   bias,        bias_boolean, dbias,
          alibi,          sink,      dsink,       dropout,      seed_tensor,
          seqused_q,      seqused_k, leftpad_k,   dlse,         deterministic,
          batch_invariant};
}

std::string portable_refusal(const Problem& problem, const DeviceTraits& traits) {
  if (problem.head_dim > kMostHeadDim || problem.head_dim_v > kMostHeadDim) {
    return concat("head_dim and head_dim_v must be <= ", kMostHeadDim, " (got ", problem.head_dim, " and ",
                  problem.head_dim_v, ")");
  }
  const std::int64_t longest = std::max(
      problem.seqlen_q * (problem.num_heads_q / std::max<std::int64_t>(problem.num_heads_k, 1)), problem.seqlen_k);
  constexpr std::int64_t kLongest = std::int64_t{1} << 29;
  if (longest > kLongest) return concat("rows of a sequence must be <= 2^29 (got ", longest, ")");
  for (const Launch& launch : lower(problem, traits).launches) {
    if (std::string reason = kernel_refusal(launch, traits); !reason.empty()) return reason;
  }
  return {};
}

Lowering lower(const Problem& problem, const DeviceTraits& traits) { return Lowerer(problem, traits).lower(); }

device::GridParams place_workspace(const device::GridParams& grid, const WorkspaceParts& parts, void* workspace) {
  device::GridParams placed = grid;
  const auto at = [workspace](std::int64_t offset) {
    return offset < 0 ? nullptr : reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + offset);
  };
  placed.partial_out = at(parts.partial_out);
  placed.partial_lse = at(parts.partial_lse);
  placed.delta = at(parts.delta);
  placed.query_sums = at(parts.query_sums);
  placed.key_sums = at(parts.key_sums);
  return placed;
}

}  // namespace tilewise::backends::portable
