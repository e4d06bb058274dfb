// From a tile's products to P and dS, in the registers of a warp: its 16 keys of a warpgroup's 64 are rows, queries are
// columns.
#pragma once

#include "device/hopper/bwd_bias.h"
#include "device/hopper/bwd_shared.h"
#include "device/hopper/bwd_work.h"
#include "device/hopper/column_place.h"
#include "device/hopper/large_lse.h"
#include "device/sm90/matrix_descriptor.h"
#include "device/sm90/warpgroup.h"
#include "device/tile/element.h"
#include "device/tile/registers.h"

namespace tilewise::device {

template <class Ops, auto C>
class BwdScores {
  using Machine = typename Ops::Machine;
  static constexpr int kColTiles = C.block_m / 8;
  static constexpr int kKeptWords = KeptWords<C>::kCount;
  static_assert(kColTiles <= 16, "a lane's columns are bits of a word");
  using Functions = FunctionsOf<C>;

 public:
  /// Whether what dS is a multiple of is not P itself: softcap and score_mod have slopes.
  static constexpr bool kSloped = Functions::kSloped, kFactors = C.softcap || kSloped;

  Fragment<Ops, 16, C.block_m> S;  // and dP
  WgmmaRegisters P[C.block_m / 16], dS[C.block_m / 16];

  /// What dS is a multiple of: P, or P times slopes, which waits where dS will be.
  TILEWISE_INLINE WgmmaRegisters (&factors()) [C.block_m / 16] { return kFactors ? dS : P; }

  TILEWISE_INLINE BwdScores(const BwdParamsOf<C>& p, const BwdWork& work, int warpgroup, int thread)
      : lane_(thread % 32),
        row_(warpgroup * C.kRows + thread / 32 % 4 * 16),
        scale_(kept_scale((C.softcap ? p.score.softcap : p.score.softmax_scale) * (C.natural_lse() ? 1.0f : kLog2E))),
        inner_scale_(C.softcap ? p.score.softmax_scale / p.score.softcap : 1.0f),
        dropout_scale_(p.score.dropout_scale) {
    clear();
    const int32_t key = work.first_key + row_ + lane_ / 4, column = 2 * (lane_ % 4);
    first_ = C.ranged ? key - work.diagonal - work.band.high - column : 0;
    end_ = C.partial_rows ? work.seqlen_q - column : 0;
    if constexpr (C.windowed) last_ = key - work.diagonal - work.band.low - column;
    if constexpr (C.alibi) {
      distance_ = key - work.diagonal - column;
      slopes_ =
          p.score.alibi_slopes + work.batch * p.score.alibi_batch_stride + work.query_head * p.score.alibi_head_stride;
    }
    if constexpr (kBiased) bias_.begin(p.score, work, row_, lane_);
    if constexpr (kAsks) key_ = key, batch_ = work.batch, head_ = work.query_head - 1;
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) used_ |= work.is_used(key + 8 * slot) ? 1 << slot : 0;
  }

  TILEWISE_INLINE void clear() {
    for (WgmmaRegisters& part : dS) part = WgmmaRegisters{};
  }

  /// The next head of the group.
  TILEWISE_INLINE void enter_head(const ScoreParams& p) {
    if constexpr (C.alibi) {
      slope_ = Machine::load_global(slopes_);
      slopes_ += p.alibi_head_stride;
    }
    if constexpr (kBiased) bias_.enter_head(p);
    if constexpr (kAsks) ++head_;
  }

  /// What this lane's queries of a tile need: two of each 8, as bwd_preprocess.h has laid them out.
  TILEWISE_INLINE void read_lse(const float* lse2) {
    TILEWISE_UNROLL
    for (int i = 0; i < kColTiles / 2; ++i) lse2_[i] = four_of(lse2, i);
  }
  /// For has_large(): one of each four words of the tile's, each lane's in another bank.
  TILEWISE_INLINE void read_marks([[maybe_unused]] const float* delta) {
    if constexpr (C.tells_large()) {
      constexpr int kStride = C.block_m / 32;
      const int word = kStride * lane_ + lane_ / (32 / kStride);
      marks_ = Machine::template load_shared<uint32_t>(reinterpret_cast<const uint32_t*>(delta) + word);
    }
  }
  /// Where no tile follows whose statistics are read. Else those of the last one would be kept through each tile, in
  /// registers that could serve something else.
  TILEWISE_INLINE void forget() {
    for (FloatRun<4>& four : lse2_) four = FloatRun<4>{};
    for (uint32_t& word : kept_) word = 0;
    marks_ = 0;
  }
  TILEWISE_INLINE void read_delta(const float* delta) {
    TILEWISE_UNROLL
    for (int i = 0; i < kColTiles / 2; ++i) delta_[i] = four_of(delta, i);
  }

  TILEWISE_INLINE void read_kept(const KeptWords<C>& words) {
    const int owner = KeptWords<C>::owner(row_, lane_), word = KeptWords<C>::word(row_, lane_);
    TILEWISE_UNROLL
    for (int i = 0; i < kKeptWords; ++i) {
      kept_[i] = Machine::template load_shared<uint32_t>(&words.kept[i][owner][word]);
    }
  }

  /// Which of a lane's columns see its two keys, a bit each.
  TILEWISE_INLINE void find_visible(const BwdParamsOf<C>& p, int32_t tile) {
    const int32_t origin = tile * C.block_m;
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      uint32_t seen = ~0u;
      if constexpr (C.ranged) seen = ~bits_before(first_ + 8 * slot - origin);
      if constexpr (C.windowed) seen &= bits_before(last_ + 8 * slot - origin + 1);
      visible_[slot] = (used_ >> slot & 1) != 0 ? seen : 0;
    }
    if constexpr (Functions::kHides) hide_by_function(p, origin);
  }

  /// A value that no query sees may be no number: rows behind the last query must not see it either.
  TILEWISE_INLINE void hide_behind_queries(int32_t tile) {
    if constexpr (C.partial_rows) {
      TILEWISE_UNROLL
      for (uint32_t& visible : visible_) visible &= bits_before(end_ - tile * C.block_m);
    }
  }
  /// The same by the log-sum-exp of such rows, lest end_ takes a register.
  TILEWISE_INLINE void hide_rows_without_weight() {
    if constexpr (!C.partial_rows) return;
    uint32_t rows = 0;
    TILEWISE_UNROLL
    for (int column = 0; column < 2 * kColTiles; ++column) {
      rows |= lse2_[column / 4].value[column % 4] == kInfinity ? 1u << column : 0;
    }
    TILEWISE_UNROLL
    for (uint32_t& visible : visible_) visible &= ~rows;
  }

  /// Whether any of the tile's log-sum-exps is large. Marks are not looked at where they are asked for: each step
  /// waited for shared memory before it handed dS on (5 to 8% of a pass at head_dim 64).
  TILEWISE_INLINE bool has_large() {
    if constexpr (!C.tells_large()) return false;
    Machine::pin(marks_);
    return Machine::any((marks_ & kGroupMark) != 0);
  }

  /// Of queries whose log-sum-exp is large: products become what weigh() makes the right exponents of. Their scores are
  /// rounded in natural units, as the forward pass had them, before the log-sum-exp is subtracted.
  TILEWISE_INLINE void scale_large(const BwdParamsOf<C>& p, const float* delta) {
    const float natural = p.score.softmax_scale, inverse = Machine::reciprocal(natural);
    TILEWISE_UNROLL
    for (int c = 0; c < kColTiles; ++c) {
      TILEWISE_UNROLL
      for (int column = 0; column < 2; ++column) {
        const int of = c % 2 * 2 + column;
        const float marked = Machine::template load_shared<float>(delta + 16 * (c / 2) + 4 * (lane_ % 4) + of);
        if (!has_large_mark(marked)) continue;
        float& lse = lse2_[c / 2].value[of];
        TILEWISE_UNROLL
        for (int slot = 0; slot < 2; ++slot) {
          float& x = S.tile[0][c][2 * slot + column];
          x = (rounded_product(x, natural) - lse) * inverse;
        }
        lse = 0.0f;
      }
    }
  }

  /// Which weights are hidden, before scale_large(): behind its branch that would come after the products of S.
  TILEWISE_INLINE void find_hidden(const BwdParamsOf<C>& p, int32_t tile) {
    find_visible(p, tile), hide_rows_without_weight();
  }

  /// S becomes P; with slopes it is left as the factors, which keep_factors() rounds.
  template <bool kMasked, class BiasTile>
  TILEWISE_INLINE void weigh(const BwdParamsOf<C>& p, int32_t tile, BiasTile& bias_tile) {
    // In floats, which count to 2^24: a conversion a score costs as much as an exponential.
    [[maybe_unused]] const auto distance = static_cast<float>(distance_ - tile * C.block_m);
    [[maybe_unused]] auto biases = bias_.of_tile(p, tile, bias_tile);
    [[maybe_unused]] const ColumnPlace first_query(tile * C.block_m + 2 * (lane_ % 4));
    TILEWISE_UNROLL
    for (int c = 0; c < kColTiles; ++c) {
      Sm80Accumulator& x = S.tile[0][c];
      [[maybe_unused]] float factor[4];
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float capped = C.softcap ? Machine::tanh(x[i] * inner_scale_) : x[i];  // as the forward pass has it
        const float lse2 = lse2_[c / 2].value[c % 2 * 2 + i % 2];
        [[maybe_unused]] bool hidden = false;
        [[maybe_unused]] float slope = 1.0f;
        if constexpr (C.natural_lse()) {
          float score = capped;
          [[maybe_unused]] bool left = true;  // by a boolean bias, whatever the score is
          if constexpr (kBiased) {
            const float bias = biases.load(c, i);
            score = fused_multiply_add(capped, scale_, bias);
            left = C.bias_type != kBiasBool || bias != -kInfinity;
            hidden = score == -kInfinity || !left;
          } else {
            score = rounded_product(capped, scale_);
          }
          if constexpr (C.alibi) {
            const float away = distance + static_cast<float>(i / 2 * 8 - 8 * c - i % 2);
            score = fused_multiply_add(-slope_, higher(away, -away), score);
          }
          if constexpr (Functions::kModifies) {
            const int32_t key = key_ + i / 2 * 8;
            const ColumnPlace query = first_query.at(8 * c + i % 2);
            if constexpr (kSloped) {
              slope = Functions::template slope<Machine>(p.tables, score, batch_, head_, query, key);
            }
            score = Functions::template score<Machine>(p.tables, score, batch_, head_, query, key);
            if constexpr (C.bias_type == kBiasBool) score = left ? score : -kInfinity;
            hidden = score == -kInfinity;
          }
          x[i] = Machine::exp2((score - lse2) * kLog2E);
        } else {
          x[i] = Machine::exp2(fused_multiply_add(capped, scale_, -lse2));
        }
        if constexpr (kFactors) factor[i] = C.softcap ? x[i] - x[i] * (capped * capped) : x[i];
        // Products that are 0 have no sign so: that marks what is hidden.
        if constexpr (kSloped) factor[i] = fused_multiply_add(factor[i], slope, 0.0f);
        if constexpr (kMarks) x[i] = marked(x[i], hidden);
        if constexpr (kMarks && kFactors) {
          factor[i] = kSloped ? (hidden ? -0.0f : factor[i]) : marked(factor[i], hidden);
        }
        // Now, since the scale may be negative.
        if constexpr (kMasked) x[i] = sees(i / 2, c, i % 2) ? x[i] : kHidden;
        if constexpr (kMasked && kFactors) factor[i] = sees(i / 2, c, i % 2) ? factor[i] : kHidden;
      }
      TILEWISE_UNROLL
      for (int slot = 0; slot < 2; ++slot) {
        P[c / 2].word[c % 2 * 2 + slot] = Machine::template pack<C.out_type>(x[2 * slot], x[2 * slot + 1]);
      }
      if constexpr (kFactors) {
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) x[i] = factor[i];
      }
    }
  }

  /// Factors move to where dS will be. Not before all weights are there: while S is weighed there are no
  /// registers for P and them (100 to 420 bytes of spills).
  TILEWISE_INLINE void keep_factors() {
    pin_registers<Machine>(S);
    TILEWISE_UNROLL
    for (int c = 0; c < kColTiles; ++c) {
      const Sm80Accumulator& x = S.tile[0][c];
      TILEWISE_UNROLL
      for (int slot = 0; slot < 2; ++slot) {
        dS[c / 2].word[c % 2 * 2 + slot] = Machine::template pack<C.q_type>(x[2 * slot], x[2 * slot + 1]);
      }
    }
  }

  /// dP, in the place of S, becomes dS = factor (dP - delta), of a factor before dropout and dP after it.
  template <bool kMasked>
  TILEWISE_INLINE void derive() {
    if constexpr (kMasked) {
      // A shuffle to where it was: else the compiler keeps a predicate for each score from weigh() to here, in
      // registers that there are none of.
      TILEWISE_UNROLL
      for (uint32_t& visible : visible_) visible = Machine::shuffle_xor(visible, 0);
    }
    TILEWISE_UNROLL
    for (int i = 0; i < kColTiles / 2; ++i) {
      TILEWISE_UNROLL
      for (int word = 0; word < 4; ++word) {
        const int c = 2 * i + word / 2, slot = word % 2;
        const Sm80Accumulator& dP = S.tile[0][c];
        float difference[2];
        TILEWISE_UNROLL
        for (int k = 0; k < 2; ++k) {
          difference[k] = after_dropout(dP[2 * slot + k], c, 2 * slot + k) - delta_[i].value[word / 2 * 2 + k];
          // Of what is hidden P is 0, and dP perhaps no number.
          if constexpr (kMasked) difference[k] = sees(slot, c, k) ? difference[k] : 0.0f;
        }
        const uint32_t factor = factors()[i].word[word];
        dS[i].word[word] = derived(factor, difference[0], difference[1]);
        if constexpr (kMarks) dS[i].word[word] &= ~marks_of(factor);
      }
    }
  }

  /// Clears weights that dropout drops; the others lack its scale.
  TILEWISE_INLINE void drop() {
    TILEWISE_UNROLL
    for (int c = 0; c < kColTiles; ++c) {
      TILEWISE_UNROLL
      for (int slot = 0; slot < 2; ++slot) P[c / 2].word[c % 2 * 2 + slot] &= kept(c, 2 * slot, 2 * slot + 1);
    }
  }

  TILEWISE_INLINE void store(typename HopperBwdShared<Machine, C>::ScoreTile& to) const {
    // Not hoisted: their addresses would live in registers that there are none of.
    const int place = to.place_of(row_ + Machine::not_hoisted(lane_) % 16, lane_ / 16);
    TILEWISE_UNROLL
    for (int k = 0; k < C.block_m / 16; ++k) Machine::store_matrices(to.pair_piece(place, k), dS[k].word);
  }

  /// P and dS are the matrix unit's up to here.
  TILEWISE_INLINE void pin_operands() {
    TILEWISE_UNROLL
    for (int k = 0; k < C.block_m / 16; ++k) {
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) Machine::pin(P[k].word[i]), Machine::pin(dS[k].word[i]);
    }
  }

 private:
  static constexpr bool kBiased = C.bias_type != kBiasNone;
  /// Whether weights tell what a bias or score_mod hides; whether functions are asked at all.
  static constexpr bool kMarks = kBiased || Functions::kModifies, kAsks = Functions::kModifies || Functions::kHides;
  /// The weight of what a mask hides. With a bias it has the sign below: of wide heads the warpgroup that derives dS
  /// does not know which rows a bias leaves without any weight.
  static constexpr float kHidden = kMarks ? -0.0f : 0.0f;

  TILEWISE_INLINE void hide_by_function(const BwdParamsOf<C>& p, int32_t origin) {
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      uint32_t seen = 0;
      TILEWISE_UNROLL
      for (int column = 0; column < 2 * kColTiles; ++column) {
        const int32_t query = origin + 2 * (lane_ % 4) + column / 2 * 8 + column % 2;
        const bool sees = Functions::template sees<Machine>(p.tables, batch_, head_, query, key_ + 8 * slot);
        seen |= sees ? 1u << column : 0;
      }
      visible_[slot] &= seen;
    }
  }

  /// Known to be the same in all lanes, and not to be a product of parameters: behind the branch of scale_large() the
  /// compiler would load and multiply these in each step, once the products of S are there.
  TILEWISE_INLINE static float kept_scale(float scale) {
    return __builtin_bit_cast(float, Machine::agreed(__builtin_bit_cast(int32_t, scale)));
  }

  /// A weight that a bias hides is a 0 with a sign, by which derive() knows that no gradient comes from there, whatever
  /// it is computed from. The others, NaN too, have none.
  TILEWISE_INLINE static float marked(float weight, bool hidden) {
    return hidden ? -0.0f : __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, weight) & 0x7FFFFFFFu);
  }

  /// All ones where a factor is a 0 with a sign; where no factor is negative the sign tells.
  TILEWISE_INLINE static uint32_t marks_of(uint32_t factors) {
    if constexpr (kSloped) return ~Machine::template halves_at_least<false>(factors ^ 0x80008000u, 0x00010001u);
    return Machine::spread_signs(factors, 1, 3);
  }

  /// In bf16 both factors are rounded, which saves a few percent of the whole pass; f16 might overflow between them.
  TILEWISE_INLINE static uint32_t derived(uint32_t factors, float first, float second) {
    if constexpr (C.q_type == kBf16) {
      return Machine::template multiply_pairs<kBf16>(factors, Machine::template pack<kBf16>(first, second));
    } else {
      return Machine::template pack<kF16>(Machine::widen_f16(static_cast<uint16_t>(factors)) * first,
                                          Machine::widen_f16(static_cast<uint16_t>(factors >> 16)) * second);
    }
  }

  /// Of two scores of a column tile, by their bytes of kept_: all bits of a half word where dropout keeps them.
  TILEWISE_INLINE uint32_t kept(int col_tile, int low, int high) const {
    return Machine::spread_signs(kept_[col_tile / 8] << (col_tile % 8), static_cast<uint32_t>(low),
                                 static_cast<uint32_t>(high));
  }
  TILEWISE_INLINE float after_dropout(float x, int col_tile, int byte) const {
    if constexpr (!C.dropout) return x;
    return dropout_scale_ * __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, x) & kept(col_tile, byte, byte));
  }

  TILEWISE_INLINE FloatRun<4> four_of(const float* statistics, int i) const {
    return Machine::template load_shared<FloatRun<4>>(statistics + 16 * i + 4 * (lane_ % 4));
  }

  TILEWISE_INLINE static uint32_t bits_before(int32_t col) { return column_bits_before<C.block_m>(col); }
  TILEWISE_INLINE bool sees(int slot, int col_tile, int i) const {
    return (visible_[slot] >> (2 * col_tile + i) & 1u) != 0;
  }

  const int lane_, row_;
  // From products, or capped scores divided by softcap, to the log-sum-exp's units; from products to what tanh is taken
  // of.
  const float scale_, inner_scale_;
  const float dropout_scale_;
  // Of this lane's first key: the first and the last query that sees it, and where queries end, counted from the lane's
  // first column. Bits of both its keys: whether they are the sequence's.
  int32_t first_, last_, end_, used_ = 0;
  int32_t distance_ = 0;        // of ALiBi, likewise: from where query 0 stands to the key
  int32_t key_, batch_, head_;  // of functions: this lane's first key
  const float* slopes_;         // of the next head
  float slope_;
  BwdBias<Machine, C> bias_;
  uint32_t visible_[2];
  uint32_t kept_[kKeptWords];  // see KeptWords
  uint32_t marks_ = 0;         // delta of one of the tile's queries, for has_large()
  FloatRun<4> lse2_[kColTiles / 2], delta_[kColTiles / 2];
};

}  // namespace tilewise::device
