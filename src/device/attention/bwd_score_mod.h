// From a wave's products of keys with queries to P (for dv) and dS (for dk and dq): rows are keys of the block,
// columns queries of the tile at hand.
#pragma once

#include "device/attention/block_keys.h"
#include "device/attention/bwd_scores.h"
#include "device/attention/config.h"
#include "device/attention/dropout.h"
#include "device/attention/q_do_pipeline.h"

namespace tilewise::device {

template <auto C, class Scores, class Keys>
class BwdScoreMod {
  using Machine = typename Scores::Ops::Machine;
  using Sets = DrawSets<Scores, kKeysAreRows>;

 public:
  /// Of one tile of queries. The wave's rows are keys [wave_row, ...) of the block, its columns queries
  /// [first_col, ...) of the tile. Draws what dropout keeps: where draws share no calls and registers are few, this
  /// comes before the products. Not to be held where `keys` is held, too: an object that points into itself lives
  /// in memory, not in registers.
  TILEWISE_INLINE BwdScoreMod(const Keys& keys, const DropoutSeed& seed, const QueryPosition& at, int wave_row,
                              int first_col)
      : keys_(keys), at_(at), lane_(Machine::lane()), wave_row_(wave_row), first_col_(first_col) {
    if constexpr (C.dropout) draw(seed);
  }

  /// S becomes P after dropout and dP becomes dS, each in its place.
  template <class Stage>
  TILEWISE_INLINE void apply(Scores& S, Scores& dP, const Stage& stage, bool masked) const {
    if constexpr (C.plain_scale && !C.dropout && Scores::kPacked) {
      plain(S, dP, stage);
    } else {
      general(S, dP, stage);
    }
    if (masked) hide(S, dP);
  }

  /// The two halves of it for scores without options, of one pair of elements: P from S, and dS from dP and P.
  template <class Pair>
  TILEWISE_INLINE void weigh(Pair& s, const TwoStatistics& two) const {
    const Pair lse{two.lse[0], two.lse[1]};
    const auto exponent = Scores::Accumulator::rounded_product(s, keys_.p.score.softmax_scale) - lse;
    s[0] = Machine::exp2(exponent[0] * kLog2E);
    s[1] = Machine::exp2(exponent[1] * kLog2E);
  }
  template <class Pair>
  TILEWISE_INLINE void differentiate(const Pair& p, Pair& dp, const TwoStatistics& two) const {
    dp = p * (dp - Pair{two.delta[0], two.delta[1]});
  }

  /// P and dS become 0 where a key is not seen.
  TILEWISE_INLINE void hide(Scores& P, Scores& dS) const {
    const int lane = Machine::not_hoisted(lane_);
    P.for_each_pair(dS, lane, [&](int slot, int col, auto&& p, auto&& ds) {
      const int32_t key = keys_.key_of(wave_row_ + Scores::row_of_slot(lane, slot));
      const int32_t query = keys_.query_of(at_, first_col_ + col);
      bool visible = keys_.sees(query, key);
      if constexpr (FunctionsOf<C>::kHides) {
        const int32_t head = keys_.head_of(at_, first_col_ + col);
        visible = visible & FunctionsOf<C>::template sees<Machine>(keys_.p.tables, keys_.place.batch, head, query, key);
      }
      p = visible ? p : 0.0f;
      ds = visible ? ds : 0.0f;
    });
  }

 private:
  /// Without options, two elements at a time.
  template <class Stage>
  TILEWISE_INLINE void plain(Scores& S, Scores& dP, const Stage& stage) const {
    S.for_each_packed(dP, lane_, [&](int, int col, auto& s, auto& dp) {
      const TwoStatistics two = stage.two_statistics(first_col_ + col);
      weigh(s, two);
      differentiate(s, dp, two);
    });
  }

  template <class Stage>
  TILEWISE_INLINE void general(Scores& S, Scores& dP, const Stage& stage) const {
    const auto& params = keys_.p;
    const auto of_head = keys_.scores_of_head(at_);
    // With everything at once, what derives from the lane is worked out tile by tile, else it passes the registers.
    const int lane = is_crowded(C) ? Machine::not_hoisted(lane_) : lane_;
    int element = 0;
    S.for_each_pair(dP, lane, [&](int slot, int col, auto&& s, auto&& dp) {
      const int32_t key = keys_.key_of(wave_row_ + Scores::row_of_slot(lane, slot));
      const RowOf<C> row = keys_.scores_of(of_head, at_, first_col_ + col);
      const TwoStatistics two = stage.two_statistics(first_col_ + col);
      const bool odd = (col & 1) != 0;  // chosen, not indexed: an indexed array lives in memory
      const QueryStatistics of_query{odd ? two.lse[1] : two.lse[0], odd ? two.delta[1] : two.delta[0]};
      const Probability P =
          probability_of<Machine, C>(params, row, keys_.band.seqlen_k, maximum(key, 0), s, of_query.lse);
      float after_dropout = P.p;
      if constexpr (C.dropout) {
        const bool keep = kept_.holds(element++);
        after_dropout = keep ? P.p * params.score.dropout_scale : 0.0f;
        dp = keep ? dp * params.score.dropout_scale : 0.0f;
      }
      dp = P.hidden ? 0.0f : P.p * (dp - of_query.delta) * P.mod_slope * P.slope;
      s = P.hidden ? 0.0f : after_dropout;
    });
  }

  /// A bit for each of the lane's elements, in for_each_pair()'s order.
  TILEWISE_INLINE void draw(const DropoutSeed& seed) {
    const ScoreParams& params = keys_.p.score;
    const auto of_batch = static_cast<int32_t>(keys_.place.batch * keys_.p.shape.num_heads_q);
    // Where rows begin with a group of 32 keys, which elements share a draw is known to the compiler.
    constexpr bool kKnown = Keys::kInARow && C.rows_per_wave % 32 == 0 && Sets::has_fixed_words();
    if constexpr (kKnown) {
      const int32_t first_key = keys_.key_of(wave_row_);
      if (!C.lengths || first_key % 32 == 0) {
        return draw_kept<Scores>(kept_, params, seed, static_cast<uint32_t>(of_batch + at_.head),
                                 keys_.query_of(at_, first_col_), first_key);
      }
    }
    // A loop: side by side some hundred multiplications pass the registers.
    TILEWISE_UNROLL
    for (int word = 0; word < kept_.kWords; ++word) {
      TILEWISE_NO_UNROLL
      for (int bit = 0; bit < minimum(32, Sets::kElements - 32 * word); ++bit) {
        const int element = 32 * word + bit, col = first_col_ + Sets::col(lane_, element);
        const bool keep = keeps(params, seed, static_cast<uint32_t>(of_batch + keys_.head_of(at_, col)),
                                keys_.query_of(at_, col), keys_.key_of(wave_row_ + Sets::row(lane_, element)));
        kept_.bits[word] |= static_cast<uint32_t>(keep) << bit;
      }
    }
  }

  const Keys& keys_;
  QueryPosition at_;
  int lane_, wave_row_, first_col_;
  KeptBits<Sets::kElements> kept_;
};

}  // namespace tilewise::device
