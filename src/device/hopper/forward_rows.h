// The rows of a warpgroup: which (query, head) each is, and what their scores depend on.
#pragma once

#include "device/attention/dropout.h"
#include "device/attention/scores.h"
#include "device/hopper/column_place.h"
#include "device/hopper/forward_bias.h"
#include "device/hopper/forward_work.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

/// Rows of a warpgroup as (query, head) pairs.
template <class Machine, auto C>
struct QueryRows {
  int32_t first_query, first_head, group, queries;

  TILEWISE_INLINE QueryRows(const HopperForwardParams& p, const SharedWork<Machine>& work, int32_t warpgroup) {
    group = C.pack_gqa ? static_cast<int32_t>(p.shape.num_heads_q / p.shape.num_heads_k) : 1;
    queries = C.pack_gqa ? p.order.queries_per_warpgroup : C.kRows;
    first_query = (work.tile * C.consumers() + warpgroup) * queries;
    first_head = work.head * group;
  }
  TILEWISE_INLINE int32_t query(int32_t row) const { return first_query + (C.pack_gqa ? row / group : row); }
  TILEWISE_INLINE int32_t head(int32_t row) const { return first_head + (C.pack_gqa ? row % group : 0); }
  /// Whether the row is one of the sequence's first `count` queries.
  TILEWISE_INLINE bool is_among(int32_t row, int32_t count) const {
    return (!C.pack_gqa || row < queries * group) && query(row) < count;
  }
  /// Row of the warpgroup behind a slot of this lane.
  TILEWISE_INLINE static int32_t row_of_slot(int slot) { return warp_row<Machine>() + Machine::lane() / 4 + 8 * slot; }
};

/// One of a head's factors in fp8.
template <class Machine>
TILEWISE_INLINE float load_scale(const HeadScales& scales, int32_t batch, int32_t head) {
  return scales.data ? Machine::load_global(scales.data + scales.index(batch, head)) : scales.value;
}

/// The key head of a tile of queries.
template <auto C, class Work>
TILEWISE_INLINE int32_t key_head(const HopperForwardParams& p, const Work& work) {
  return C.pack_gqa ? work.head : work.head / static_cast<int32_t>(p.shape.num_heads_q / p.shape.num_heads_k);
}

/// What the scores of a lane's two rows depend on. What a config has no use for is left to the optimiser.
template <class Machine, auto C>
class ScoreRows {
  using Functions = FunctionsOf<C>;

 public:
  using Params = ForwardParamsOf<C>;
  /// Scores that are capped and nothing else stay divided by softcap, which the softmax's own factor makes good.
  static constexpr bool kCapsAlone = C.softcap && !C.alibi && C.bias_type == kBiasNone && !Functions::kModifies;
  /// Slopes alone may come before the scale.
  static constexpr bool kSlopesProducts = C.alibi && !C.softcap && C.bias_type == kBiasNone && !Functions::kModifies;
  /// Slopes, divided by the scale, whose products with distances are numbers.
  static constexpr float kMostFall = 0x1p90f;
  /// Slopes up to which the two parts of a line, each of some 128 columns where weights matter, round a score by 2^-13
  /// at most.
  static constexpr float kMostOfLine = 8.0f;

  TILEWISE_INLINE void begin(const Params& p, const SharedWork<Machine>& work, int32_t warpgroup) {
    const QueryRows<Machine, C> rows(p, work, warpgroup);
    // A tile of unused queries reads some bias too, and drops what comes of it.
    const Sequence s{work.q_row, work.k_row,  maximum<int32_t>(work.seqlen_q, 1), work.seqlen_k, work.all_q,
                     0,          work.leftpad};
    seqlen_k_ = uniform<Machine>(work.seqlen_k);
    for (int slot = 0; slot < 2; ++slot) {
      const int32_t row = rows.row_of_slot(slot);
      const int32_t head = minimum<int32_t>(rows.head(row), static_cast<int32_t>(p.shape.num_heads_q) - 1);
      row_[slot] = row_score<C>(p.score, p.shape.num_heads_q, s, work.batch, head, rows.query(row));
      row_[slot].diagonal = rows.query(row) + work.diagonal;
    }
    if constexpr (C.bias_boxes) bias_.begin(p.bias_places, rows);
    if constexpr (C.dropout) seed_ = dropout_seed(p.score);
    begin_scales(p, work, rows);
    if constexpr (C.softcap) inner_scale_ = plain_scale(p.score) / p.score.softcap;
  }

  /// What natural_scale() depends on; begin() does it too.
  TILEWISE_INLINE void begin_scales(const HopperForwardParams& p, const SharedWork<Machine>& work,
                                    const QueryRows<Machine, C>& rows) {
    if constexpr (C.fp8()) {  // one factor: heads that are packed have q's in common
      product_scale_ = load_scale<Machine>(p.q_scale, work.batch, rows.first_head) *
                       load_scale<Machine>(p.k_scale, work.batch, key_head<C>(p, work));
    }
    if constexpr (C.alibi) {
      for (int slot = 0; slot < 2; ++slot) {
        const int64_t head = minimum<int64_t>(rows.head(rows.row_of_slot(slot)), p.shape.num_heads_q - 1);
        slope_[slot] = p.score.alibi_slopes[work.batch * p.score.alibi_batch_stride + head * p.score.alibi_head_stride];
      }
    }
    if constexpr (kSlopesProducts) {
      const float scale = plain_scale(p.score);
      float fall[2];
      bool falls = scale > 0.0f, is_line = true;
      for (int slot = 0; slot < 2; ++slot) {
        fall[slot] = slope_[slot] / scale;
        falls = falls && fall[slot] >= 0.0f && fall[slot] <= kMostFall;
        is_line = is_line && slope_[slot] <= kMostOfLine;
      }
      slopes_products_ = !Machine::any(!falls);
      slopes_lines_ = !Machine::any(!falls || !is_line);
      for (int slot = 0; slot < 2; ++slot) slope_[slot] = slopes_products_ ? fall[slot] : slope_[slot];
    }
  }

  /// From what adjust() leaves to scores in natural units.
  TILEWISE_INLINE float natural_scale(const ScoreParams& p) const {
    if constexpr (C.plain_scale || C.scales_late) return plain_scale(p);
    if constexpr (kCapsAlone) return p.softcap;
    return kSlopesProducts && slopes_products_ ? plain_scale(p) : 1.0f;
  }
  /// Whether it is the same for all rows of a call, and begin_scales() not needed.
  static constexpr bool kOneScale = !C.fp8() && !kSlopesProducts;

  /// Applies the options that C names to scores of the tile that begins with first_key, unless that is a plain scale,
  /// and hides what the rows do not see where kMasked. A bias that comes in boxes has been read.
  template <bool kMasked, class Scores>
  TILEWISE_INLINE void adjust(Scores& S, const Params& params, int32_t first_key) const {
    const ScoreParams& p = params.score;
    const int32_t origin = lane_origin(first_key);
    if constexpr (!C.plain_scale) {
      if (kSlopesProducts && slopes_products_) {
        slope_products(S, origin);
        if constexpr (kMasked) hide(S, params, origin);
        return;
      }
      if constexpr (C.softcap) cap(S);
      const float scale = C.softcap ? p.softcap : plain_scale(p);
      if constexpr (C.bias_boxes) {
        bias_.add(S, scale);
      } else {
        if constexpr (C.bias_type != kBiasNone) {
          scale_and_bias_of<kMasked>(S, scale, p, origin);
        } else if constexpr (!kCapsAlone) {
          S.for_each(0, [&](int, int, auto&& x) { x = rounded_product(x, scale); });
        }
      }
      if constexpr (C.alibi) slope(S, origin);
      if constexpr (Functions::kModifies) modify<kMasked>(S, params, origin);
    }
    if constexpr (kMasked) hide(S, params, origin);
  }

  /// adjust<false>() but for `rest`, which is still to be added to this lane's scores of each row. Where a tile's keys
  /// lie on one side of all of a warp's diagonals, ALiBi is a line, of which a score takes one instruction then, for
  /// its column's part.
  template <class Scores, class PerRow>
  TILEWISE_INLINE void adjust_but(PerRow& rest, Scores& S, const Params& p, int32_t first_key) const {
    static_assert(kSlopesProducts);
    bool behind = true, ahead = true;
    for (int slot = 0; slot < 2; ++slot) {
      behind = behind && first_key + C.block_n - 1 <= row_[slot].diagonal;
      ahead = ahead && first_key >= row_[slot].diagonal;
    }
    const bool all_behind = !Machine::any(!behind);
    if (!slopes_lines_ || (!all_behind && Machine::any(!ahead))) {
      rest.fill(0.0f);
      adjust<false>(S, p, first_key);
      return;
    }
    const int32_t origin = lane_origin(first_key);
    float rise[2];  // from a column to the next
    for (int slot = 0; slot < 2; ++slot) {
      rise[slot] = all_behind ? slope_[slot] : -slope_[slot];
      rest[slot] = rise[slot] * static_cast<float>(origin - row_[slot].diagonal);
    }
    S.for_each(0, [&](int slot, int col, auto&& x) { x += static_cast<float>(col) * rise[slot]; });
  }

  /// Reads a tile of a bias that comes in boxes.
  template <class Tile>
  TILEWISE_INLINE void fetch_bias(Tile& tile) {
    bias_.fetch(tile);
  }

  /// Makes dropout's draws for a tile of keys, which needs no scores: the matrix unit computes them meanwhile.
  template <class Draws>
  TILEWISE_INLINE void draw(Draws& draws, const ScoreParams& p, int32_t first_key) const {
    draws.draw(p, seed_, row_, first_key);
  }
  template <int kFrom, int kTo, class Draws>
  TILEWISE_INLINE void draw_fetched(Draws& draws, const ScoreParams& p) const {
    draws.template draw_fetched<kFrom, kTo>(p, seed_, row_);
  }

 private:
  /// This lane's first column, from which its others count.
  TILEWISE_INLINE static int32_t lane_origin(int32_t first_key) { return first_key + 2 * (Machine::lane() % 4); }

  TILEWISE_INLINE float plain_scale(const ScoreParams& p) const {
    return C.fp8() ? p.softmax_scale * product_scale_ : p.softmax_scale;
  }

  /// Leaves scores divided by softcap.
  template <class Scores>
  TILEWISE_INLINE void cap(Scores& S) const {
    S.for_each(0, [&](int, int, auto&& x) { x = Machine::tanh(x * inner_scale_); });
  }

  /// In floats, which count to 2^24: a conversion a score costs as much as an exponential.
  template <class Scores>
  TILEWISE_INLINE void slope(Scores& S, int32_t origin) const {
    float distance[2];
    for (int slot = 0; slot < 2; ++slot) distance[slot] = static_cast<float>(row_[slot].diagonal - origin);
    S.for_each(0, [&](int slot, int col, auto&& x) {
      const float away = distance[slot] - static_cast<float>(col);
      x = fused_multiply_add(-slope_[slot], magnitude(away), x);
    });
  }

  /// Before the scale, where that is positive and slopes are not negative, as a rule: of distances that have been
  /// multiplied the magnitude costs nothing, so that a score takes two instructions of the pipe that multiplies.
  template <class Scores>
  TILEWISE_INLINE void slope_products(Scores& S, int32_t origin) const {
    float distance[2];
    for (int slot = 0; slot < 2; ++slot) {
      distance[slot] = static_cast<float>(row_[slot].diagonal - origin) * slope_[slot];
    }
    S.for_each(0, [&](int slot, int col, auto&& x) {
      x -= magnitude(distance[slot] - static_cast<float>(col) * slope_[slot]);
    });
  }

  /// Neighbouring keys' biases lie side by side, as a rule: their addresses are a constant apart then.
  template <bool kMasked, class Scores>
  TILEWISE_INLINE void scale_and_bias_of(Scores& S, float scale, const ScoreParams& p, int32_t origin) const {
    if (seqlen_k_ == 0) return;
    if (!kMasked && p.bias.key_stride == 1) {
      const int64_t at[2] = {row_[0].bias + origin, row_[1].bias + origin};
      S.for_each(0, [&](int slot, int col, auto&& x) { x = scale_and_bias<Machine, C>(x, scale, p, at[slot] + col); });
    } else {
      S.for_each(0, [&](int slot, int col, auto&& x) {
        const int64_t key = minimum(origin + col, seqlen_k_ - 1);  // a key past the end has no bias, and is hidden
        x = scale_and_bias<Machine, C>(x, scale, p, row_[slot].bias + key * p.bias.key_stride);
      });
    }
  }

  /// The problem's own function of each score, in natural units.
  template <bool kMasked, class Scores>
  TILEWISE_INLINE void modify(Scores& S, const Params& params, int32_t origin) const {
    const ColumnPlace key(origin);
    S.for_each(0, [&](int slot, int col, auto&& x) {
      const RowOf<C>& row = row_[slot];
      x = with_plain_nan<Machine>(
          Functions::template score<Machine>(params.tables, x, row.batch, row.head, row.query, key.at(col)));
    });
    // Hidden before any number is looked at, whatever the function makes of it.
    if constexpr (C.bias_type == kBiasBool && C.bias_boxes) {
      bias_.hide(S);
    } else if constexpr (C.bias_type == kBiasBool) {
      if (seqlen_k_ == 0) return;
      S.for_each(0, [&](int slot, int col, auto&& x) {
        const int64_t key = kMasked ? minimum(origin + col, seqlen_k_ - 1) : origin + col;
        x = is_left_by_bias<Machine>(params.score, row_[slot].bias + key * params.score.bias.key_stride) ? x
                                                                                                         : -kInfinity;
      });
    }
  }

  /// By options, and then by the problem's own function.
  template <class Scores>
  TILEWISE_INLINE void hide(Scores& S, const Params& params, int32_t origin) const {
    hide_outside_range(S, params.score, origin);
    if constexpr (Functions::kHides) {
      S.for_each(0, [&](int slot, int col, auto&& x) {
        const RowOf<C>& row = row_[slot];
        x = Functions::template sees<Machine>(params.tables, row.batch, row.head, row.query, origin + col) ? x
                                                                                                           : -kInfinity;
      });
    }
  }

  /// A comparison with a constant a score, two where a window hides keys on the left; of wide tiles words of bits then.
  template <class Scores>
  TILEWISE_INLINE void hide_outside_range(Scores& S, const ScoreParams& p, int32_t origin) const {
    constexpr bool kByBits = C.windowed && C.block_n > 64;
    int32_t first[2] = {0, 0}, last[2];
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      last[slot] = seqlen_k_ - 1 - origin;
      if constexpr (C.ranged) {
        const KeyBand band = key_band(p);
        last[slot] = minimum(last[slot], row_[slot].diagonal + band.high - origin);
        if constexpr (C.windowed) first[slot] = row_[slot].diagonal + band.low - origin;
      }
    }
    if constexpr (kByBits) {
      hide_outside(S, first, last);
    } else {
      S.for_each(0, [&](int slot, int col, auto&& x) {
        const bool hidden = col > last[slot] || (C.windowed && col < first[slot]);
        x = hidden ? -kInfinity : x;
      });
    }
  }

  /// Bits reach predicates seven at a time: of 128 keys a tile takes 50 instructions less so. Words of 16 bits the
  /// compiler takes apart one by one.
  template <class Scores>
  TILEWISE_INLINE void hide_outside(Scores& S, const int32_t (&first)[2], const int32_t (&last)[2]) const {
    constexpr int kWords = ceil_div(C.block_n, kWordColumns);
    uint32_t seen[2][kWords];
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      TILEWISE_UNROLL
      for (int w = 0; w < kWords; ++w) {
        const int32_t begin = w * kWordColumns;
        seen[slot][w] = column_bits_before(last[slot] + 1 - begin) & ~column_bits_before(first[slot] - begin);
      }
    }
    S.for_each(0, [&](int slot, int col, auto&& x) {
      x = (seen[slot][col / kWordColumns] >> column_bit(col % kWordColumns) & 1u) != 0 ? x : -kInfinity;
    });
  }

  int32_t seqlen_k_;
  RowOf<C> row_[2];
  DropoutSeed seed_;
  float product_scale_;
  float slope_[2];        // of ALiBi, as products have it where it comes before the scale
  bool slopes_products_;  // whether it does
  bool slopes_lines_;     // and whether a row's part of it and a column's may be apart
  float inner_scale_;     // of a product, whose tanh is taken: divided here once, not in each step
  BoxedBias<Machine, C> bias_;
};

}  // namespace tilewise::device
