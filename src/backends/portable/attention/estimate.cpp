// A launch takes as long as the longest of: the arithmetic of all its blocks, spread over the multiprocessors; one
// block after the other where there are too few to hide each other's latency; and the way of its tensors to memory
// and back. The constants are those of an H200 (docs/benchmarks), as work that the device's rates turn into time.
#include "backends/portable/attention/estimate.hpp"

#include <algorithm>
#include <cmath>

namespace tilewise::backends::portable {
namespace {

// Until the first blocks have something to compute, and the last results are in memory.
constexpr double kStartUs = 4.1, kStreamStartUs = 1.5;
// Of a tile that no other block's arithmetic hides, beside its products.
constexpr double kTileUs = 0.2, kLoneWaveUs = 2.3e-4;  // the latter for each element of a tile's keys
// Blocks that share a multiprocessor, of one wave or more.
constexpr double kBlocksAtOnce = 2.0, kLoneWavesAtOnce = 4.0;
constexpr double kLoneWaveParts = 4.0;  // of a multiprocessor's matrix units, of which a wave uses one

// Work in multiply-adds of the sustained rate (DeviceTraits::gflops), times 2.
constexpr double kWideRows = 0.83, kNarrowRows = 1.02;  // of a flop, by rows a wave: 32 or 16
constexpr double kScore = 54.0;                         // a score's exponential and its neighbours
constexpr double kSoftcap = 150.0, kDropout = 185.0, kBias = 60.0, kAlibi = 25.0;
constexpr double kFunction = 110.0;   // score_mod of a few terms
constexpr double kMaskTiles = 100.0;  // a pair that mask_mod is asked for alone; not measured

// The backward pass: of a flop, by columns that fit a wave's registers; a block's own rows; a score beside products.
constexpr double kBwdFlop = 1.10, kBwdWideFlop = 1.42, kApartFlop = 1.3;
constexpr double kBwdBlockUs = 2.2, kBwdRowUs = 3.2e-4;
constexpr double kGradientScore = 20.0, kGradientFeatures = 2.0;

constexpr double kOfMemoryRate = 0.82;                    // that streaming reaches of the bandwidth
constexpr double kOfBlocksRate = 0.45;                    // and blocks that load and store their own rows
constexpr double kCombineUs = 1.6, kCombineBytes = 12.0;  // of combine: its latency, and what a float costs
constexpr double kAddBytes = 14.7;                        // that a float costs where many blocks add to the same one
constexpr double kAloneOwn = 1.25;  // of a block's own rows, where no other block's tiles hide them
constexpr double kFloatBytes = 4.0, kHalfBytes = 2.0;

/// What options and functions add to a score.
double features(const device::ScoreConfig& c, const Problem& p) {
  return (p.score_mod.empty() ? 0.0 : kFunction) + (c.softcap ? kSoftcap : 0.0) + (c.dropout ? kDropout : 0.0) +
         (c.alibi ? kAlibi : 0.0) + (c.bias_type != device::kBiasNone ? kBias : 0.0);
}

}  // namespace

struct Estimator::Blocks {
  double count = 0.0;        // of the whole launch
  double tiles = 0.0;        // that one of them visits, on average
  double longest = 0.0;      // at most
  double flops = 0.0;        // of a tile, in units of the sustained rate
  double own_us = 0.0;       // beside its tiles
  double tile_us = kTileUs;  // of a tile that nothing hides
  double at_once = kBlocksAtOnce;
  double parts = 1.0;  // of a multiprocessor's matrix units for each one that a block can use

  /// Tiles over what a block sees on average and at most: whole ones where all see as much; a band's begin anywhere.
  void set_tiles(double seen, double most, std::int32_t tile, double share) {
    longest = std::ceil(most / tile) * share;
    tiles = seen < most ? std::min(longest, std::max(seen / tile, 1.0) * share) : longest;
  }
};

Estimator::Estimator(const Problem& p, const DeviceTraits& traits)
    : p_(p),
      traits_(traits),
      extent_(operations::attention::typical_extent(p)),
      flops_a_us_(1e3 * traits.gflops / traits.multiprocessors),
      bytes_a_us_(1e3 * traits.memory_gigabytes_per_second) {}

double Estimator::rows_q() const { return extent_.total_q * f(p_.num_heads_q); }
double Estimator::rows_k() const { return extent_.total_k * f(p_.num_heads_k); }
double Estimator::dims() const { return f(p_.head_dim + p_.head_dim_v); }
double Estimator::group() const { return f(p_.num_heads_q) / std::max(f(p_.num_heads_k), 1.0); }
double Estimator::dq_accum_bytes() const { return kFloatBytes * rows_q() * f(p_.head_dim); }

double Estimator::stream_us(double bytes) const { return bytes / (kOfMemoryRate * bytes_a_us_); }

double Estimator::own_us(double bytes) const { return bytes * traits_.multiprocessors / (kOfBlocksRate * bytes_a_us_); }

double Estimator::used_blocks(std::int64_t blocks, double total, std::int64_t longest) const {
  const double most = f(p_.batch_size) * f(longest);
  return f(blocks) * (most > 0.0 ? std::min(1.0, total / most) : 1.0);
}

double Estimator::blocks_us(const Blocks& b) const {
  const double tile_us = b.flops / flops_a_us_, share = b.count / traits_.multiprocessors;
  const bool even = b.tiles >= b.longest;  // then the last round is as long as the others
  const double busy_us = (even ? std::ceil(share) : share) * (b.tiles * tile_us + b.own_us);
  const double tiles = std::max(b.longest, share / b.at_once * b.tiles);
  const double alone_us = tiles * (b.tile_us + b.parts * tile_us) + kAloneOwn * b.own_us;
  return std::max(busy_us, alone_us);
}

double Estimator::forward_us(const device::ForwardConfig& c, std::int64_t blocks, std::int64_t num_splits,
                             double key_bytes) const {
  const double rows = c.block_m(), splits = f(num_splits);
  const double queries = c.pack_gqa ? std::max(1.0, rows / group()) : rows;
  const double flop = c.rows_per_wave >= 32 ? kWideRows : kNarrowRows;
  Blocks b;
  b.count = f(blocks) * operations::attention::share_of_tiles(p_, queries);
  b.set_tiles(operations::attention::keys_seen(p_, queries) / splits,
              operations::attention::most_keys_seen(p_, queries) / splits, c.block_n, 1.0);
  b.flops = rows * c.block_n * (2.0 * flop * (c.head_dim + c.head_dim_v) + kScore + features(c, p_));
  b.own_us = own_us(kHalfBytes * rows * (c.head_dim + c.head_dim_v));
  if (c.waves == 1) {
    b.tile_us = kLoneWaveUs * 0.5 * c.block_n * (c.head_dim + c.head_dim_v);
    b.at_once = kLoneWavesAtOnce;
    b.parts = kLoneWaveParts;
  }
  const double seen =
      operations::attention::keys_seen(p_, std::max(extent_.seqlen_q, 1.0)) / std::max(extent_.seqlen_k, 1.0);
  const double bytes = dims() * (kHalfBytes * rows_q() + key_bytes * rows_k() * std::min(seen, 1.0));
  return kStartUs + std::max(blocks_us(b), stream_us(bytes));
}

double Estimator::mask_tiles_us(std::int64_t entries) const {
  return kStreamStartUs + 1e-3 * kMaskTiles * f(entries) * f(p_.seqlen_q) * f(p_.seqlen_k) / traits_.gflops;
}

/// Parts come from the cache, a float at a time.
double Estimator::combine_us(std::int64_t splits) const {
  return kCombineUs + 1e-3 * kCombineBytes * f(splits) * rows_q() * f(p_.head_dim_v) / traits_.gigabytes_per_second;
}

double Estimator::preprocess_us(bool clears_dq_accum) const {
  return kStreamStartUs +
         stream_us(2.0 * kHalfBytes * rows_q() * f(p_.head_dim_v) + (clears_dq_accum ? dq_accum_bytes() : 0.0));
}

double Estimator::convert_dq_us() const {
  return kStreamStartUs + stream_us(dq_accum_bytes() + kHalfBytes * rows_q() * f(p_.head_dim));
}

double Estimator::convert_dkdv_us(std::int64_t splits) const {
  return kStreamStartUs + stream_us((kFloatBytes * f(splits) + kHalfBytes) * rows_k() * dims());
}

double Estimator::dsink_us() const { return kStartUs + stream_us(2.0 * kFloatBytes * rows_q()); }

/// Blocks of keys add whole tiles to dq_accum: where a head has few tiles, all to the same ones at once.
double Estimator::added_us(const Blocks& b, const device::BwdConfig& c) const {
  const double tiles_a_head = std::max(1.0, std::ceil(extent_.seqlen_q / c.block_m));
  const double floats = b.count * b.tiles * c.block_m * c.head_dim;
  return 1e-3 * kAddBytes * floats / tiles_a_head / traits_.gigabytes_per_second;
}

/// Blocks of keys that stream tiles of queries. `products`: of dk, dv and dq, beside S and dP.
Estimator::Blocks Estimator::key_blocks(const device::ScoreConfig& c, std::int64_t blocks, std::int32_t block_n,
                                        std::int32_t block_m, double products, double flop, double splits) const {
  const double rows = block_n;
  Blocks b;
  b.count = used_blocks(blocks, extent_.total_k, p_.seqlen_k);
  b.set_tiles(operations::attention::queries_seen(p_, rows), operations::attention::most_queries_seen(p_, rows),
              block_m, group() / splits);
  b.flops =
      rows * block_m *
      (flop * (2.0 + products) * (c.head_dim + c.head_dim_v) + kGradientScore + kGradientFeatures * features(c, p_));
  b.own_us = kBwdBlockUs + kBwdRowUs * rows * c.wider_dim();
  return b;
}

double Estimator::bwd_us(const device::BwdConfig& c, std::int64_t blocks, std::int64_t splits) const {
  const double flop = c.wider_dim() > 128 ? kBwdWideFlop : kBwdFlop;
  const Blocks b = key_blocks(c, blocks, c.block_n(), c.block_m, c.wants_dk + c.wants_dv + c.wants_dq, flop, f(splits));
  const double bytes = kHalfBytes * dims() * (2.0 * rows_k() + rows_q()) + (c.wants_dq ? dq_accum_bytes() : 0.0);
  return kStartUs + std::max({blocks_us(b), stream_us(bytes), c.wants_dq ? added_us(b, c) : 0.0});
}

double Estimator::dkdv_us(const device::BwdDkdvConfig& c, std::int64_t blocks) const {
  const Blocks b = key_blocks(c, blocks, c.block_n(), c.block_m, c.wants_dk + c.wants_dv, kApartFlop, 1.0);
  return kStartUs + std::max(blocks_us(b), stream_us(kHalfBytes * dims() * (2.0 * rows_k() + rows_q())));
}

double Estimator::dq_us(const device::BwdDqConfig& c, std::int64_t blocks) const {
  const double rows = c.block_m();
  Blocks b;
  b.count = used_blocks(blocks, extent_.total_q, p_.seqlen_q);
  b.set_tiles(operations::attention::keys_seen(p_, rows), operations::attention::most_keys_seen(p_, rows), c.block_n,
              1.0);
  b.flops = rows * c.block_n *
            (kApartFlop * 3.0 * (c.head_dim + c.head_dim_v) + kGradientScore + kGradientFeatures * features(c, p_));
  b.own_us = own_us(kHalfBytes * rows * (2.0 * c.head_dim + c.head_dim_v));
  return kStartUs + std::max(blocks_us(b), stream_us(kHalfBytes * dims() * (1.5 * rows_q() + rows_k())));
}

/// Recomputes two products for every score, block by block of the bias.
double Estimator::dbias_us(const device::BwdDbiasConfig& c, std::int64_t blocks) const {
  const double rows = c.block_m();
  Blocks b;
  b.count = f(blocks);
  const double tile = rows * c.block_n, scores = rows_q() * operations::attention::keys_seen(p_, rows);
  b.tiles = b.longest = std::max(1.0, scores / tile / std::max(b.count, 1.0));
  b.flops =
      tile * (kApartFlop * 2.0 * (c.head_dim + c.head_dim_v) + kGradientScore + kGradientFeatures * features(c, p_));
  return kStartUs + blocks_us(b);
}

}  // namespace tilewise::backends::portable
