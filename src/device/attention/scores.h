// What happens to scores between Q K^T and the softmax: scale, softcap, bias, ALiBi, mask. One copy for
// the forward and the backward pass.
#pragma once

#include "device/attention/config.h"
#include "device/attention/params.h"
#include "device/common/mask.h"
#include "device/tile/element.h"
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

/// And where functions ask for its sequence and head. `query` is their q_idx.
struct FunctionRow : RowScore {
  int32_t batch, head;
};
template <auto C>
using RowOf = Choose<FunctionsOf<C>::kModifies || FunctionsOf<C>::kHides, FunctionRow, RowScore>;

/// Rows past the end need no care, since what they compute is not stored: a lane's rows stay
/// one register plus constants.
template <auto C>
TILEWISE_INLINE RowOf<C> row_score(const ScoreParams& p, int64_t num_heads_q, const Sequence& s, int64_t batch,
                                   int64_t head, int64_t i) {
  RowOf<C> row{};
  row.query = static_cast<int32_t>(i);
  row.diagonal = static_cast<int32_t>(i + diagonal_offset(p, s));
  if constexpr (IsSame<RowOf<C>, FunctionRow>::value) {
    row.batch = static_cast<int32_t>(batch);
    row.head = static_cast<int32_t>(head);
    if constexpr (FunctionsOf<C>::kAtPositions) row.query = row.diagonal;
  }
  row.batch_head = static_cast<uint32_t>(batch * num_heads_q + head);
  if constexpr (C.alibi) row.slope = p.alibi_slopes[batch * p.alibi_batch_stride + head * p.alibi_head_stride];
  if constexpr (C.bias_type != kBiasNone) {
    row.bias = batch * p.bias.batch_stride + head * p.bias.head_stride +
               minimum<int64_t>(i, s.seqlen_q - 1) * p.bias.query_stride + s.leftpad * p.bias.key_stride;
  }
  return row;
}

/// Exact to some units in the last place, near 0 too, since softcap multiplies it by the cap: the first terms of its
/// series there, 1 - 2 / (e^2x + 1) beyond.
template <class Machine>
TILEWISE_INLINE float tanh_of(float x) {
  const float far = fused_multiply_add(Machine::reciprocal(Machine::exp2(x * (2.0f * kLog2E)) + 1.0f), -2.0f, 1.0f);
  const float square = x * x;
  float p = fused_multiply_add(square, -17.0f / 315.0f, 2.0f / 15.0f);
  p = fused_multiply_add(p, square, -1.0f / 3.0f);
  return square < 0.06f ? fused_multiply_add(x * square, p, x) : far;
}

/// The bias at an offset, of a type that has numbers.
template <class Machine, auto C>
TILEWISE_INLINE float load_bias(const ScoreParams& p, int64_t offset) {
  static_assert(C.bias_type == kBiasF32 || C.bias_type == kBiasBf16 || C.bias_type == kBiasF16);
  if constexpr (C.bias_type == kBiasF32) {
    return with_plain_nan<Machine>(Machine::load_global(static_cast<const float*>(p.bias.data) + offset));
  } else {
    const uint16_t bits = Machine::load_global(static_cast<const uint16_t*>(p.bias.data) + offset);
    return element_to_float<C.bias_type == kBiasBf16 ? kBf16 : kF16>(bits);
  }
}

/// Whether a boolean bias leaves the position at an offset.
template <class Machine>
TILEWISE_INLINE bool is_left_by_bias(const ScoreParams& p, int64_t offset) {
  return Machine::load_global(static_cast<const uint8_t*>(p.bias.data) + offset);
}

/// score * scale and the bias at an offset, rounded once. Where a boolean bias hides the position, whatever the score
/// is: -infinity.
template <class Machine, auto C>
TILEWISE_INLINE float scale_and_bias(float score, float scale, const ScoreParams& p, int64_t offset) {
  if constexpr (C.bias_type == kBiasBool) {
    const bool seen = is_left_by_bias<Machine>(p, offset);
    return seen ? rounded_product(score, scale) : -kInfinity;
  } else if constexpr (C.bias_type == kBiasNone) {
    return rounded_product(score, scale);
  } else {
    return fused_multiply_add(score, scale, load_bias<Machine, C>(p, offset));
  }
}

/// What the backward pass needs beside a score.
struct ScoreSlopes {
  float capped = 0.0f;     // the score after the cap, before the bias, divided by softcap
  float mod_slope = 1.0f;  // score_mod's derivative
};

/// A score in natural units, from the plain product; kBackward: with its slopes. Of a kernel's parameters.
template <class Machine, auto C, bool kBackward, class Params>
TILEWISE_INLINE float full_score(const Params& params, const RowOf<C>& row, int32_t seqlen_k, int32_t key,
                                 float product, ScoreSlopes* slopes = nullptr) {
  using Functions = FunctionsOf<C>;
  const ScoreParams& p = params.score;
  float x = product, scale = p.softmax_scale;
  if constexpr (C.softcap) {
    x = tanh_of<Machine>(product * p.softmax_scale * Machine::reciprocal(p.softcap));
    if (slopes) slopes->capped = x;
    scale = p.softcap;
  }
  const int64_t inside = minimum(key, seqlen_k - 1);  // a key past the end has no bias, and is masked away
  const int64_t bias = row.bias + inside * p.bias.key_stride;
  x = scale_and_bias<Machine, C>(x, scale, p, bias);
  if constexpr (C.alibi) {
    const int32_t distance = row.diagonal - key;
    x = fused_multiply_add(-row.slope, static_cast<float>(distance < 0 ? -distance : distance), x);
  }
  if constexpr (Functions::kModifies) {
    if constexpr (kBackward) {
      slopes->mod_slope = Functions::template slope<Machine>(params.tables, x, row.batch, row.head, row.query, key);
    }
    x = with_plain_nan<Machine>(
        Functions::template score<Machine>(params.tables, x, row.batch, row.head, row.query, key));
    // Hidden before any number is looked at, whatever the function makes of it.
    if constexpr (C.bias_type == kBiasBool) x = is_left_by_bias<Machine>(p, bias) ? x : -kInfinity;
  }
  return x;
}

/// Whether a row sees a key: by mask, window and the problem's function.
template <class Machine, auto C, class Params>
TILEWISE_INLINE bool sees_key(const Params& params, const VisibleBand& band, const RowOf<C>& row, int32_t key) {
  bool seen = is_visible<C>(band, row.diagonal, key);
  if constexpr (FunctionsOf<C>::kHides) {
    // Without a branch, as look-ups are.
    seen = seen & FunctionsOf<C>::template sees<Machine>(params.tables, row.batch, row.head, row.query, key);
  }
  return seen;
}

/// The keys of a tile's columns where they are selected: in shared memory.
template <class Machine>
struct SelectedColumns {
  const int32_t* keys;
};

/// The key of a tile's column; of a number, where keys follow the tile's first one.
TILEWISE_INLINE int32_t key_at(int32_t first_key, int col) { return first_key + col; }
template <class Machine>
TILEWISE_INLINE int32_t key_at(const SelectedColumns<Machine>& columns, int col) {
  return Machine::template load_shared<int32_t>(columns.keys + col);
}

template <auto C, bool kMasked, class Scores, class Params, class Keys>
TILEWISE_INLINE void modify_scores(Scores& S, const Params& params, const RowOf<C> (&rows)[Scores::kSlots],
                                   const VisibleBand& band, const Keys& keys) {
  using Machine = typename Scores::Ops::Machine;
  if constexpr (C.plain_scale && !kMasked) return;
  // Masked tiles are few: their columns must not live through the other tiles' loop.
  const int lane = kMasked ? Machine::not_hoisted(Machine::lane()) : Machine::lane();
  S.for_each(lane, [&](int slot, int col, auto&& x) {
    [[maybe_unused]] const int32_t key = key_at(keys, col);
    if constexpr (!C.plain_scale) x = full_score<Machine, C, false>(params, rows[slot], band.seqlen_k, key, x);
    if constexpr (kMasked) x = sees_key<Machine, C>(params, band, rows[slot], key) ? x : -kInfinity;
  });
}

/// Applies the options that C names and, in a masked tile, hides what a row does not see. `keys`: of the tile's
/// columns, by key_at().
template <auto C, class Scores, class Params, class Keys>
TILEWISE_INLINE void score_mod(Scores& S, const Params& params, const RowOf<C> (&rows)[Scores::kSlots],
                               const VisibleBand& band, const Keys& keys, bool masked) {
  if (masked) {
    modify_scores<C, true>(S, params, rows, band, keys);
  } else {
    modify_scores<C, false>(S, params, rows, band, keys);
  }
}

}  // namespace tilewise::device
