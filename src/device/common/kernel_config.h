// What a portable kernel is specialised on: a small value that the host chooses and prints and the
// kernel takes as a template argument. No lengths, batch, heads or strides stand in it.
#pragma once

#include <stdint.h>

#include "device/common/params.h"

namespace tilewise::device {

enum ElementType : int32_t { kBf16 = 0, kF16 = 1 };

/// Matrix instructions by family; each has its ops_*.h.
enum Machine : int32_t { kSm80 = 0, kCdna = 1, kRdna = 2 };

/// A block of `waves` waves owns waves / wave_cols * rows_per_wave rows (queries, or keys in the backward
/// pass for dk and dv) and streams the other side in tiles of tile_cols.
struct KernelConfig {
  int32_t element = kBf16;
  int32_t head_dim = 64, head_dim_v = 64;  // padded to multiples of 32
  int32_t waves = 4, rows_per_wave = 16, tile_cols = 64, stages = 1;
  int32_t wave_cols = 1;           // waves that share rows, each with a part of the columns; a power of 2
  bool rows_in_registers = false;  // the block's own operand (Q, or K and V), else it stays in shared memory
  bool vector_rows = true;         // rows start on 16 bytes and head dims are multiples of 8
  bool exact_dims = true;          // head dims equal their padded values
  bool plain_scale = true;         // scores are softmax_scale * q.k with a positive scale, nothing else
  bool lengths = false;            // cu_seqlens, seqused or leftpad_k are given
  bool ranged = false;             // a causal mask or a window
  bool softcap = false, alibi = false, sink = false, dropout = false;
  int32_t bias_type = kBiasNone;
  bool packed_heads = false;              // rows of a block are (query, head of the group) pairs
  bool split = false;                     // the streamed side is split over blocks, a second kernel merges
  bool wants_dk = true, wants_dv = true;  // what a key gradient kernel adds up
  bool wants_dq = false;                  // and whether it adds to dq

  friend constexpr bool operator==(const KernelConfig&, const KernelConfig&) = default;
};

/// Whether scores need draws and a bias: what costs most registers.
constexpr bool is_crowded(const KernelConfig& config) { return config.dropout && config.bias_type != kBiasNone; }

/// Parts that the keys of a row may be split into.
inline constexpr int32_t kMostSplits = 128;

/// Up to so many of them are merged by one wave a row, all read at once; more by a block a row.
inline constexpr int32_t kRowSplits = 8;

/// Lanes that share a row of the row_delta kernel: as many as its 16-byte chunks need, up to a wave.
constexpr int32_t lanes_a_delta_row(const KernelConfig& config, int32_t wave_lanes) {
  int32_t lanes = 1;
  while (lanes < wave_lanes && lanes * 8 < config.head_dim_v) lanes *= 2;
  return lanes;
}

/// Rows of a query tile that a wave sums up for dq in the fused backward pass: 32 where its share of the
/// columns is then whole units of 16.
constexpr int32_t query_sum_rows(const KernelConfig& config) {
  const int32_t parts = 32 * config.waves / config.tile_cols;
  return parts >= 1 && config.head_dim % (16 * parts) == 0 ? 32 : 16;
}

/// Of a launch: how the grid is cut, and the workspace. Pointers are null where a kernel has no use for them.
struct GridParams {
  int32_t num_tiles;   // row tiles of a (batch, head)
  int32_t num_splits;  // parts of the streamed side
  int32_t heads;       // heads the grid runs over
  int32_t key_splits;  // parts that dk and dv add up to
  float* partial_out;  // [split, batch, head, query, head_dim_v], softmax divided by its sum
  float* partial_lse;  // [split, batch, head, query], natural logarithm
  float* delta;        // [batch, head, query]: rowsum(out * dout) - dlse
  float* query_sums;   // [batch, head, query_sums_a_head], dq before its scale; see query_sums.h
  int64_t query_sums_a_head;
  float* key_sums;  // [batch, key head, key tile, key_splits, key_sums_a_block]; see key_sums.h
  int64_t key_sums_a_block;
};

/// The one parameter of every portable kernel.
struct KernelParams {
  AttentionParams call;
  GridParams grid;
};

}  // namespace tilewise::device
