// What happens to scores between Q K^T and the softmax: scale, softcap, bias, ALiBi, mask. One copy for
// the forward and the backward pass.
#pragma once

#include "device/attention/params.h"
#include "device/common/float16.h"
#include "device/common/mask.h"
#include "device/tile/fragment.h"

namespace tilewise::device {

/// Which keys of a sequence its queries see: keys minus diagonal in [low, high], below seqlen_k. The
/// same for every row, so that a row costs one register.
struct VisibleBand {
  int32_t low, high, seqlen_k;
  /// One comparison: distances below `low` wrap around to large numbers.
  TILEWISE_INLINE bool holds(int32_t distance) const {
    return static_cast<uint32_t>(distance - low) <= static_cast<uint32_t>(high - low);
  }
};
TILEWISE_INLINE VisibleBand visible_band(const ScoreParams& p, const Sequence& s) {
  constexpr int64_t kFar = 0x3FFFFFFF;
  return {static_cast<int32_t>(p.window_left < 0 ? -kFar : -minimum<int64_t>(p.window_left, kFar)),
          static_cast<int32_t>(p.window_right < 0 ? kFar : minimum<int64_t>(p.window_right, kFar)),
          static_cast<int32_t>(s.seqlen_k)};
}

/// `diagonal`: the key that the query stands at.
template <auto C>
TILEWISE_INLINE bool is_visible(const VisibleBand& band, int32_t diagonal, int32_t key) {
  if constexpr (!C.ranged) return key < band.seqlen_k;
  return key < band.seqlen_k && band.holds(key - diagonal);
}

/// What the scores of one row depend on. Kernels that need less leave the rest to the optimiser.
struct RowScore {
  int32_t query, diagonal;  // i, and i + d: the key it stands at
  uint32_t batch_head;
  float slope;
  int64_t bias;  // offset of its bias at key 0 (left padding included)
};

/// Rows past the end need no care, since what they compute is not stored: a lane's rows stay
/// one register plus constants.
template <auto C>
TILEWISE_INLINE RowScore row_score(const ScoreParams& p, int64_t num_heads_q, const Sequence& s, int64_t batch,
                                   int64_t head, int64_t i) {
  RowScore row{};
  row.query = static_cast<int32_t>(i);
  row.diagonal = static_cast<int32_t>(i + diagonal_offset(p, s));
  row.batch_head = static_cast<uint32_t>(batch * num_heads_q + head);
  if constexpr (C.alibi) row.slope = p.alibi_slopes[batch * p.alibi_batch_stride + head * p.alibi_head_stride];
  if constexpr (C.bias_type != kBiasNone) {
    row.bias = batch * p.bias.batch_stride + head * p.bias.head_stride +
               minimum<int64_t>(i, s.seqlen_q - 1) * p.bias.query_stride + s.leftpad * p.bias.key_stride;
  }
  return row;
}

template <class Machine>
TILEWISE_INLINE float tanh_of(float x) {
  const float e = Machine::exp2(x * (2.0f * kLog2E));
  return 1.0f - 2.0f * Machine::reciprocal(e + 1.0f);
}

/// A score with the bias at an offset. Where a boolean bias hides the position, whatever the score is: -infinity.
template <class Machine, auto C>
TILEWISE_INLINE float add_bias(float score, const ScoreParams& p, int64_t offset) {
  if constexpr (C.bias_type == kBiasF32) {
    return score + with_plain_nan<Machine>(Machine::load_global(static_cast<const float*>(p.bias.data) + offset));
  }
  if constexpr (C.bias_type == kBiasBool) {
    return Machine::load_global(static_cast<const uint8_t*>(p.bias.data) + offset) ? score : -kInfinity;
  }
  if constexpr (C.bias_type == kBiasBf16) {
    return score + bf16_to_float(Machine::load_global(static_cast<const uint16_t*>(p.bias.data) + offset));
  }
  if constexpr (C.bias_type == kBiasF16) {
    return score + f16_to_float(Machine::load_global(static_cast<const uint16_t*>(p.bias.data) + offset));
  }
  return score;
}

/// A score in units of log2, from the plain product. `capped`: the score after the cap, before the
/// bias, divided by softcap (the backward pass needs it).
template <class Machine, auto C>
TILEWISE_INLINE float full_score(const ScoreParams& p, const RowScore& row, int32_t seqlen_k, int32_t key,
                                 float product, float* capped = nullptr) {
  float x = product * p.softmax_scale;
  if constexpr (C.softcap) {
    const float t = tanh_of<Machine>(x * Machine::reciprocal(p.softcap));
    if (capped) *capped = t;
    x = p.softcap * t;
  }
  if constexpr (C.bias_type != kBiasNone) {
    // A key past the end has no bias to read; its score is masked away.
    const int64_t inside = minimum(key, seqlen_k - 1);
    x = add_bias<Machine, C>(x, p, row.bias + inside * p.bias.key_stride);
  }
  if constexpr (C.alibi) {
    const int32_t distance = row.diagonal - key;
    x -= row.slope * static_cast<float>(distance < 0 ? -distance : distance);
  }
  return x * kLog2E;
}

template <auto C, bool kMasked, class Scores>
TILEWISE_INLINE void modify_scores(Scores& S, const ScoreParams& p, const RowScore (&rows)[Scores::kSlots],
                                   const VisibleBand& band, int32_t first_key) {
  using Machine = typename Scores::Ops::Machine;
  if constexpr (C.plain_scale && !kMasked) return;
  // Masked tiles are few: their columns must not live through the other tiles' loop.
  const int lane = kMasked ? Machine::not_hoisted(Machine::lane()) : Machine::lane();
  S.for_each(lane, [&](int slot, int col, auto&& x) {
    [[maybe_unused]] const int32_t key = first_key + col;
    if constexpr (!C.plain_scale) x = full_score<Machine, C>(p, rows[slot], band.seqlen_k, key, x);
    if constexpr (kMasked) x = is_visible<C>(band, rows[slot].diagonal, key) ? x : -kInfinity;
  });
}

/// Applies the options that C names and, in a masked tile, hides what a row does not see.
template <auto C, class Scores>
TILEWISE_INLINE void score_mod(Scores& S, const ScoreParams& p, const RowScore (&rows)[Scores::kSlots],
                               const VisibleBand& band, int32_t first_key, bool masked) {
  if (masked) {
    modify_scores<C, true>(S, p, rows, band, first_key);
  } else {
    modify_scores<C, false>(S, p, rows, band, first_key);
  }
}

}  // namespace tilewise::device
