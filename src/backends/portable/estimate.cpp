// A launch takes as long as the longest of: the arithmetic of all its blocks, spread over the multiprocessors; one
// block after the other where there are too few to hide each other's latency; and the way of its tensors to memory
// and back. The constants are those of an H200 (docs/benchmarks.md), as work that the device's rates turn into time.
#include "backends/portable/estimate.hpp"

#include <algorithm>
#include <cmath>

#include "backends/portable/schedule.hpp"
#include "operations/attention/work.hpp"

namespace tilewise::backends::portable {
namespace {

using device::KernelConfig;

constexpr double kLaunchUs = 2.5;
// Until the first blocks have something to compute, and the last results are in memory.
constexpr double kStartUs = 4.1, kStreamStartUs = 1.5;
// Of a tile that no other block's arithmetic hides, beside its products.
constexpr double kTileUs = 0.2, kLoneWaveDimUs = 0.015;  // the latter for each of head_dim
// Blocks that share a multiprocessor, of one wave or more.
constexpr double kBlocksAtOnce = 2.0, kLoneWavesAtOnce = 4.0;
constexpr double kLoneWaveParts = 4.0;  // of a multiprocessor's matrix units, of which a wave uses one

// Work in multiply-adds of the sustained rate (DeviceTraits::gflops), times 2.
constexpr double kWideRows = 0.83, kNarrowRows = 1.02;  // of a flop, by rows a wave: 32 or 16
constexpr double kScore = 54.0;                         // a score's exponential and its neighbours
constexpr double kSoftcap = 150.0, kDropout = 185.0, kBias = 60.0, kAlibi = 25.0;

// The backward pass: of a flop, by columns that fit a wave's registers; a block's own rows; a score beside products.
constexpr double kFusedFlop = 1.10, kFusedWideFlop = 1.42, kApartFlop = 1.3;
constexpr double kFusedBlockUs = 2.2, kFusedRowUs = 3.2e-4;
constexpr double kGradientScore = 20.0, kGradientFeatures = 2.0;

constexpr double kOfMemoryRate = 0.82;                // that streaming reaches of the bandwidth
constexpr double kOfBlocksRate = 0.45;                // and blocks that load and store their own rows
constexpr double kMergeUs = 1.6, kMergeBytes = 12.0;  // of a merge: its latency, and what a float costs
constexpr double kAddBytes = 14.7;                    // that a float costs where many blocks add to the same one
constexpr double kAloneOwn = 1.25;                    // of a block's own rows, where no other block's tiles hide them
constexpr double kFloat = 4.0, kHalf = 2.0;

double f(std::int64_t n) { return static_cast<double>(n); }

class Estimator {
 public:
  Estimator(const Problem& p, const DeviceTraits& traits)
      : p_(p),
        traits_(traits),
        extent_(operations::attention::typical_extent(p)),
        flops_a_us_(1e3 * traits.gflops / traits.multiprocessors),
        bytes_a_us_(1e3 * traits.memory_gigabytes_per_second) {}

  [[nodiscard]] double launch_us(const Launch& launch) const {
    switch (launch.key.kind) {
      case KernelKind::forward:
        return forward_us(launch);
      case KernelKind::fused_gradient:
      case KernelKind::key_gradient:
        return key_gradient_us(launch);
      case KernelKind::query_gradient:
        return query_gradient_us(launch);
      case KernelKind::bias_gradient:
        return bias_gradient_us(launch);
      case KernelKind::merge_splits:
        return kMergeUs + merged_us(f(launch.grid.num_splits));
      case KernelKind::row_delta:
        return kStreamStartUs +
               stream_us(2.0 * kHalf * rows_q() * f(p_.head_dim_v) + (sums_queries(launch) ? query_sum_bytes() : 0.0));
      case KernelKind::store_query_sums:
        return kStreamStartUs + stream_us(query_sum_bytes() + kHalf * rows_q() * f(p_.head_dim));
      case KernelKind::store_key_sums:
        return kStreamStartUs + stream_us((kFloat * f(launch.grid.key_splits) + kHalf) * rows_k() * dims());
      case KernelKind::sink_gradient:
        return kStartUs + stream_us(2.0 * kFloat * rows_q());
    }
    return 0.0;
  }

 private:
  /// Rows of all heads.
  [[nodiscard]] double rows_q() const { return extent_.total_q * f(p_.num_heads_q); }
  [[nodiscard]] double rows_k() const { return extent_.total_k * f(p_.num_heads_k); }
  [[nodiscard]] double dims() const { return f(p_.head_dim + p_.head_dim_v); }
  [[nodiscard]] double group() const { return f(p_.num_heads_q) / std::max(f(p_.num_heads_k), 1.0); }
  [[nodiscard]] double query_sum_bytes() const { return kFloat * rows_q() * f(p_.head_dim); }
  [[nodiscard]] static bool sums_queries(const Launch& launch) { return launch.grid.query_sums_a_head > 0; }

  [[nodiscard]] double stream_us(double bytes) const { return bytes / (kOfMemoryRate * bytes_a_us_); }

  /// Of a block's own rows, on the share of the bandwidth that its multiprocessor has.
  [[nodiscard]] double own_us(double bytes) const {
    return bytes * traits_.multiprocessors / (kOfBlocksRate * bytes_a_us_);
  }

  /// What options add to a score.
  [[nodiscard]] static double features(const KernelConfig& c) {
    return (c.softcap ? kSoftcap : 0.0) + (c.dropout ? kDropout : 0.0) + (c.alibi ? kAlibi : 0.0) +
           (c.bias_type != device::kBiasNone ? kBias : 0.0);
  }

  /// The blocks that a launch has for the sequences as they are: packed ones have fewer rows than the longest.
  [[nodiscard]] double used_blocks(const Launch& launch, double total, std::int64_t longest) const {
    const double most = f(p_.batch_size) * f(longest);
    return f(launch.blocks) * (most > 0.0 ? std::min(1.0, total / most) : 1.0);
  }

  struct Blocks {
    double count = 0.0;        // of the whole launch
    double tiles = 0.0;        // that one of them visits, on average
    double longest = 0.0;      // at most
    double flops = 0.0;        // of a tile, in units of the sustained rate
    double own_us = 0.0;       // beside its tiles
    double tile_us = kTileUs;  // of a tile that nothing hides
    double at_once = kBlocksAtOnce;
    double parts = 1.0;  // of a multiprocessor's matrix units for each one that a block can use
  };

  [[nodiscard]] double blocks_us(const Blocks& b) const {
    const double tile_us = b.flops / flops_a_us_, share = b.count / traits_.multiprocessors;
    const bool even = b.tiles >= b.longest;  // then the last round is as long as the others
    const double busy_us = (even ? std::ceil(share) : share) * (b.tiles * tile_us + b.own_us);
    const double tiles = std::max(b.longest, share / b.at_once * b.tiles);
    const double alone_us = tiles * (b.tile_us + b.parts * tile_us) + kAloneOwn * b.own_us;
    return std::max(busy_us, alone_us);
  }

  /// Parts come from the cache, a float at a time.
  [[nodiscard]] double merged_us(double splits) const {
    return 1e-3 * kMergeBytes * splits * rows_q() * f(p_.head_dim_v) / traits_.gigabytes_per_second;
  }

  [[nodiscard]] double forward_us(const Launch& launch) const {
    const KernelConfig& c = launch.key.config;
    const double rows = block_rows(KernelKind::forward, c), splits = f(launch.grid.num_splits);
    const double queries = c.packed_heads ? std::max(1.0, rows / group()) : rows;
    const double flop = c.rows_per_wave >= 32 ? kWideRows : kNarrowRows;
    Blocks b;
    b.count = used_blocks(launch, extent_.total_q, p_.seqlen_q);
    set_tiles(b, operations::attention::keys_seen(p_, queries) / splits,
              operations::attention::most_keys_seen(p_, queries) / splits, c.tile_cols, 1.0);
    b.flops = rows * c.tile_cols * (2.0 * flop * (c.head_dim + c.head_dim_v) + kScore + features(c));
    b.own_us = own_us(kHalf * rows * (c.head_dim + c.head_dim_v));
    if (c.waves == 1) {
      b.tile_us = kLoneWaveDimUs * 0.5 * (c.head_dim + c.head_dim_v);
      b.at_once = kLoneWavesAtOnce;
      b.parts = kLoneWaveParts;
    }
    const double seen =
        operations::attention::keys_seen(p_, std::max(extent_.seqlen_q, 1.0)) / std::max(extent_.seqlen_k, 1.0);
    return kStartUs + std::max(blocks_us(b), stream_us(kHalf * dims() * (rows_q() + rows_k() * std::min(seen, 1.0))));
  }

  /// Tiles over what a block sees on average and at most: whole ones where all see as much; a band's begin anywhere.
  static void set_tiles(Blocks& b, double seen, double most, std::int32_t tile_cols, double parts) {
    b.longest = std::ceil(most / tile_cols) * parts;
    b.tiles = seen < most ? std::min(b.longest, std::max(seen / tile_cols, 1.0) * parts) : b.longest;
  }

  /// Blocks of keys add whole tiles to the sums of dq: where a head has few tiles, all to the same ones at once.
  [[nodiscard]] double added_us(const Blocks& b, const KernelConfig& c) const {
    const double tiles_a_head = std::max(1.0, std::ceil(extent_.seqlen_q / c.tile_cols));
    const double floats = b.count * b.tiles * c.tile_cols * c.head_dim;
    return 1e-3 * kAddBytes * floats / tiles_a_head / traits_.gigabytes_per_second;
  }

  [[nodiscard]] double key_gradient_us(const Launch& launch) const {
    const KernelConfig& c = launch.key.config;
    const bool fused = launch.key.kind == KernelKind::fused_gradient;
    const double rows = block_rows(launch.key.kind, c), splits = std::max(1.0, f(launch.grid.num_splits));
    const double dim = std::max(c.head_dim, c.head_dim_v);
    const double flop = !fused ? kApartFlop : dim > 128.0 ? kFusedWideFlop : kFusedFlop;
    const double products = 2.0 + (c.wants_dk ? 1.0 : 0.0) + (c.wants_dv ? 1.0 : 0.0) + (c.wants_dq ? 1.0 : 0.0);
    Blocks b;
    b.count = used_blocks(launch, extent_.total_k, p_.seqlen_k);
    set_tiles(b, operations::attention::queries_seen(p_, rows), operations::attention::most_queries_seen(p_, rows),
              c.tile_cols, group() / splits);
    b.flops = rows * c.tile_cols *
              (flop * products * (c.head_dim + c.head_dim_v) + kGradientScore + kGradientFeatures * features(c));
    b.own_us = kFusedBlockUs + kFusedRowUs * rows * dim;
    const double bytes = kHalf * dims() * (2.0 * rows_k() + rows_q()) + (c.wants_dq ? query_sum_bytes() : 0.0);
    return kStartUs + std::max({blocks_us(b), stream_us(bytes), c.wants_dq ? added_us(b, c) : 0.0});
  }

  [[nodiscard]] double query_gradient_us(const Launch& launch) const {
    const KernelConfig& c = launch.key.config;
    const double rows = block_rows(launch.key.kind, c);
    Blocks b;
    b.count = used_blocks(launch, extent_.total_q, p_.seqlen_q);
    set_tiles(b, operations::attention::keys_seen(p_, rows), operations::attention::most_keys_seen(p_, rows),
              c.tile_cols, 1.0);
    b.flops = rows * c.tile_cols *
              (kApartFlop * 3.0 * (c.head_dim + c.head_dim_v) + kGradientScore + kGradientFeatures * features(c));
    b.own_us = own_us(kHalf * rows * (2.0 * c.head_dim + c.head_dim_v));
    return kStartUs + std::max(blocks_us(b), stream_us(kHalf * dims() * (1.5 * rows_q() + rows_k())));
  }

  /// Recomputes two products for every score, block by block of the bias.
  [[nodiscard]] double bias_gradient_us(const Launch& launch) const {
    const KernelConfig& c = launch.key.config;
    const double rows = block_rows(launch.key.kind, c);
    Blocks b;
    b.count = f(launch.blocks);
    const double tile = rows * c.tile_cols, scores = rows_q() * operations::attention::keys_seen(p_, rows);
    b.tiles = b.longest = std::max(1.0, scores / tile / std::max(b.count, 1.0));
    b.flops =
        tile * (kApartFlop * 2.0 * (c.head_dim + c.head_dim_v) + kGradientScore + kGradientFeatures * features(c));
    return kStartUs + blocks_us(b);
  }

  const Problem& p_;
  const DeviceTraits& traits_;
  operations::attention::Extent extent_;
  double flops_a_us_, bytes_a_us_;  // of one multiprocessor; of the device
};

}  // namespace

double estimate_us(const Problem& problem, const DeviceTraits& traits, const std::vector<Launch>& launches) {
  const Estimator estimator(problem, traits);
  double us = 0.0;
  for (const Launch& launch : launches) us += kLaunchUs + estimator.launch_us(launch);
  return std::max(us, kLaunchUs);  // a call that launches nothing takes a moment too
}

}  // namespace tilewise::backends::portable
