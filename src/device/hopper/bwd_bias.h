// A bias in the backward kernel, whose rows are keys: loaded by TMA beside each tile of queries, or loaded
// by each score for itself.
#pragma once

#include "device/attention/scores.h"
#include "device/hopper/bwd_shared.h"
#include "device/hopper/bwd_work.h"

namespace tilewise::device {

/// Loads of each score's own, for a lane's two keys.
template <class Machine, auto C>
class LoadedBwdBias {
 public:
  /// Of a tile of queries. Its stride is the tensor's, so that each score has an address of its own.
  struct OfTile {
    const ScoreParams& p;
    int64_t of_key[2];
    int32_t first, last;  // query of the lane's first column, and the sequence's last one: no bias lies behind it
    /// Register i of column tile c: a number, or -infinity where a boolean bias hides the position.
    TILEWISE_INLINE float load(int c, int i) const {
      const int64_t query = minimum(first + 8 * c + i % 2, last);
      const int64_t at = of_key[i / 2] + query * p.bias.query_stride;
      if constexpr (C.bias_type == kBiasBool) {
        return Machine::load_global(static_cast<const uint8_t*>(p.bias.data) + at) != 0 ? 0.0f : -kInfinity;
      } else {
        return load_bias<Machine, C>(p, at);
      }
    }
  };

  /// Before the first head. row: of the block, the warp's first one.
  TILEWISE_INLINE void begin(const ScoreParams& p, const BwdWork& work, int row, int lane) {
    head_ = work.batch * p.bias.batch_stride + work.query_head * p.bias.head_stride - p.bias.head_stride;
    column_ = 2 * (lane % 4);
    last_ = work.seqlen_q - 1;
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {  // keys that are no keys have some key's
      const int32_t key = work.first_key + row + lane / 4 + 8 * slot;
      key_[slot] = work.leftpad + maximum(0, minimum(key, work.seqlen_k - 1));
    }
  }
  TILEWISE_INLINE void enter_head(const ScoreParams& p) { head_ += p.bias.head_stride; }

  template <class NoTile>
  TILEWISE_INLINE OfTile of_tile(const BwdParamsOf<C>& p, int32_t tile, NoTile&) const {
    const BiasTensor& bias = p.score.bias;
    const auto of_key = [&](int slot) { return head_ + int64_t{key_[slot]} * bias.key_stride; };
    return {p.score, {of_key(0), of_key(1)}, tile * C.block_m + column_, last_};
  }

 private:
  int64_t head_;  // where the bias of the head at hand begins
  int32_t key_[2], column_, last_;
};

/// From a tile of shared memory, whose rows are queries.
template <class Machine, auto C>
class BoxedBwdBias {
  using Tile = BwdBiasTile<C>;
  static constexpr bool kOfHalves = C.bias_type == kBiasBf16 || C.bias_type == kBiasF16;

 public:
  struct OfTile {
    Tile& tile;
    int32_t rows;  // 1, or 0 where all queries have the first row's
    int row, lane;
    uint32_t words[4];  // of 16 queries and 16 keys

    TILEWISE_INLINE float load(int c, int i) {
      if constexpr (kOfHalves) {
        // Four matrices of 8 x 8 are transposed on their way, as this warp's accumulators lie.
        if (c % 2 == 0 && i == 0) {
          const int query = 8 * c + lane / 16 * 8 + lane % 8;
          Machine::load_matrices_transposed(words, tile.piece(rows * query, row / 8 + lane / 8 % 2));
        }
        const uint32_t word = words[c % 2 * 2 + i / 2];
        const auto half = static_cast<uint16_t>(i % 2 == 0 ? word : word >> 16);
        return C.bias_type == kBiasBf16 ? bf16_to_float(half) : Machine::widen_f16(half);
      } else {
        const int query = 8 * c + 2 * (lane % 4) + i % 2, byte = (row + lane / 4 + i / 2 * 8) * bias_bytes(C);
        const uint8_t* const from = tile.piece(rows * query, byte / 16) + byte % 16;
        if constexpr (C.bias_type == kBiasF32) return Machine::template load_shared<float>(from);
        return Machine::template load_shared<uint8_t>(from) != 0 ? 0.0f : -kInfinity;
      }
    }
  };

  TILEWISE_INLINE void begin(const ScoreParams&, const BwdWork&, int row, int lane) { row_ = row, lane_ = lane; }
  TILEWISE_INLINE void enter_head(const ScoreParams&) {}
  TILEWISE_INLINE OfTile of_tile(const BwdParamsOf<C>& p, int32_t, Tile& tile) const {
    return {tile, p.bias_places.query, row_, lane_, {}};
  }

 private:
  int row_, lane_;
};

struct NoBwdBias {
  template <class NoTile>
  TILEWISE_INLINE NoBwdBias of_tile(const HopperBwdParams&, int32_t, NoTile&) const {
    return {};
  }
};

template <class Machine, auto C>
using BwdBias = Choose<C.bias_type == kBiasNone, NoBwdBias,
                       Choose<(C.bias_boxes != 0), BoxedBwdBias<Machine, C>, LoadedBwdBias<Machine, C>>>;

}  // namespace tilewise::device
