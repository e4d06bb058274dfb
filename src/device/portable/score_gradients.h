// From a wave's products of keys with queries to weights (for dv) and score gradients (for dk and dq):
// rows are keys of the block, columns queries of the tile at hand.
#pragma once

#include "device/portable/dropout.h"
#include "device/portable/gradients.h"
#include "device/portable/key_block.h"

namespace tilewise::device {

template <class Ops, KernelConfig C, class Scores>
class ScoreGradients {
  using Machine = typename Ops::Machine;
  using Sets = DrawSets<Scores, kKeysAreRows>;

 public:
  /// Of one tile of queries. The wave's rows are keys [wave_row, ...) of `block`, its columns queries
  /// [first_col, ...) of the tile. Draws what dropout keeps: where draws share no calls and registers are few, this
  /// comes before the products. Not to be held where `block` is held, too: an object that points into itself lives
  /// in memory, not in registers.
  TILEWISE_INLINE ScoreGradients(const KeyBlock<C>& block, const DropoutSeed& seed, const QueryPosition& at,
                                 int wave_row, int first_col)
      : block_(block), at_(at), lane_(Machine::lane()), wave_row_(wave_row), first_col_(first_col) {
    if constexpr (C.dropout) draw(seed);
  }

  /// Products k.q become weights after dropout, products v.dout score gradients, each in its place.
  template <class Stage>
  TILEWISE_INLINE void compute(Scores& scores, Scores& gradients, const Stage& stage, bool masked) const {
    if constexpr (C.plain_scale && !C.dropout && Scores::kPacked) {
      plain(scores, gradients, stage);
    } else {
      general(scores, gradients, stage);
    }
    if (masked) hide(scores, gradients);
  }

 private:
  TILEWISE_INLINE int32_t first_query() const { return at_.tile * C.tile_cols + first_col_; }

  /// Without options, two elements at a time.
  template <class Stage>
  TILEWISE_INLINE void plain(Scores& scores, Scores& gradients, const Stage& stage) const {
    const float scale = block_.p.softmax_scale * kLog2E;
    scores.for_each_packed(gradients, lane_, [&](int, int col, auto& score, auto& gradient) {
      const TwoStatistics two = stage.two_statistics(first_col_ + col);
      const typename Scores::Pair lse{two.lse[0], two.lse[1]}, delta{two.delta[0], two.delta[1]};
      const auto exponent = score * scale - lse;
      score[0] = Machine::exp2(exponent[0]);
      score[1] = Machine::exp2(exponent[1]);
      gradient = score * (gradient - delta);
    });
  }

  TILEWISE_INLINE void hide(Scores& scores, Scores& gradients) const {
    const int lane = Machine::not_hoisted(lane_);
    scores.for_each_pair(gradients, lane, [&](int slot, int col, auto&& score, auto&& gradient) {
      const int32_t key = block_.first_key + wave_row_ + Scores::row_of_slot(lane, slot);
      const bool visible = block_.sees(first_query() + col, key);
      score = visible ? score : 0.0f;
      gradient = visible ? gradient : 0.0f;
    });
  }

  template <class Stage>
  TILEWISE_INLINE void general(Scores& scores, Scores& gradients, const Stage& stage) const {
    const AttentionParams& p = block_.p;
    const RowScore of_head = row_score<C>(p, block_.sequence, block_.place.batch, at_.head, 0);
    // With everything at once, what derives from the lane is worked out tile by tile, else it passes the registers.
    const int lane = is_crowded(C) ? Machine::not_hoisted(lane_) : lane_;
    int element = 0;
    scores.for_each_pair(gradients, lane, [&](int slot, int col, auto&& score, auto&& gradient) {
      const int32_t key = block_.first_key + wave_row_ + Scores::row_of_slot(lane, slot), query = first_query() + col;
      const RowScore row = block_.query_score(of_head, query);
      const TwoStatistics two = stage.two_statistics(first_col_ + col);
      const bool odd = (col & 1) != 0;  // chosen, not indexed: an indexed array lives in memory
      const QueryStatistics of_query{odd ? two.lse[1] : two.lse[0], odd ? two.delta[1] : two.delta[0]};
      const ScoreWeight of_score =
          weight_of<Machine, C>(p, row, block_.band.seqlen_k, maximum(key, 0), score, of_query.lse);
      const float weight = of_score.weight;
      float after_dropout = weight;
      if constexpr (C.dropout) {
        const bool keep = kept_.holds(element++);
        after_dropout = keep ? weight * p.dropout_scale : 0.0f;
        gradient = keep ? gradient * p.dropout_scale : 0.0f;
      }
      gradient = of_score.hidden ? 0.0f : weight * (gradient - of_query.delta) * of_score.slope;
      score = of_score.hidden ? 0.0f : after_dropout;
    });
  }

  /// A bit for each of the lane's elements, in for_each_pair()'s order.
  TILEWISE_INLINE void draw(const DropoutSeed& seed) {
    const auto batch_head = static_cast<uint32_t>(block_.place.batch * block_.p.num_heads_q + at_.head);
    const int32_t first_key = block_.first_key + wave_row_;
    // Where rows begin with a group of 32 keys, which elements share a draw is known to the compiler.
    constexpr bool kKnown = C.rows_per_wave % 32 == 0 && Sets::has_fixed_words();
    if constexpr (kKnown) {
      if (!C.lengths || first_key % 32 == 0) {
        return draw_kept<Machine, Scores>(kept_, block_.p, seed, batch_head, first_query(), first_key);
      }
    }
    // A loop: side by side some hundred multiplications pass the registers.
    TILEWISE_UNROLL
    for (int word = 0; word < kept_.kWords; ++word) {
      TILEWISE_NO_UNROLL
      for (int bit = 0; bit < minimum(32, Sets::kElements - 32 * word); ++bit) {
        const int element = 32 * word + bit;
        const bool keep = keeps(block_.p, seed, batch_head, first_query() + Sets::col(lane_, element),
                                first_key + Sets::row(lane_, element));
        kept_.bits[word] |= static_cast<uint32_t>(keep) << bit;
      }
    }
  }

  const KeyBlock<C>& block_;
  QueryPosition at_;
  int lane_, wave_row_, first_col_;
  KeptBits<Sets::kElements> kept_;
};

}  // namespace tilewise::device
