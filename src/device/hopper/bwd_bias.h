// A bias in the backward kernel, where each score loads its own: rows are keys, columns queries.
#pragma once

#include "device/attention/scores.h"
#include "device/hopper/bwd_work.h"

namespace tilewise::device {

/// Of a lane's two keys.
template <class Machine, HopperBwdConfig C>
class BwdBias {
 public:
  /// Of a tile of queries. Its stride is the tensor's, so that each score has an address of its own.
  struct OfTile {
    const ScoreParams& p;
    int64_t of_key[2];
    int32_t first, last;  // query of the lane's first column, and the sequence's last one: no bias lies behind it
    /// Register i of column tile c: a number, or -infinity where a boolean bias hides the position.
    TILEWISE_INLINE float load(int c, int i) const {
      const int64_t query = minimum(first + 8 * c + i % 2, last);
      return add_bias<Machine, C>(0.0f, p, of_key[i / 2] + query * p.bias.query_stride);
    }
  };

  /// Before the first head. key, column: of the lane's first row and column.
  TILEWISE_INLINE void begin(const ScoreParams& p, const BwdWork& work, int32_t key, int32_t column) {
    head_ = work.batch * p.bias.batch_stride + work.head * work.group * p.bias.head_stride - p.bias.head_stride;
    column_ = column;
    last_ = work.seqlen_q - 1;
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {  // keys that are no keys have some key's
      key_[slot] = work.leftpad + maximum(0, minimum(key + 8 * slot, work.seqlen_k - 1));
    }
  }
  TILEWISE_INLINE void enter_head(const ScoreParams& p) { head_ += p.bias.head_stride; }

  TILEWISE_INLINE OfTile of_tile(const ScoreParams& p, int32_t tile) const {
    const auto of_key = [&](int slot) { return head_ + int64_t{key_[slot]} * p.bias.key_stride; };
    return {p, {of_key(0), of_key(1)}, tile * C.block_m + column_, last_};
  }

 private:
  int64_t head_;  // where the bias of the head at hand begins
  int32_t key_[2], column_, last_;
};

struct NoBias {
  TILEWISE_INLINE NoBias of_tile(const ScoreParams&, int32_t) const { return {}; }
};

}  // namespace tilewise::device
