// score_mod and mask_mod of one row of scores of one block of keys.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/program.h"
#include "backends/cpu/kernels.hpp"

namespace tilewise::backends::cpu {

/// Keys [key, key + columns) of the sequence, of which the first `valid` exist. columns is a multiple of two vectors.
struct KeySpan {
  int64_t key, columns, valid;
  bool all_visible;  // by mask_mod, which is not asked then
};

template <class V>
struct RowFunctions {
  using Real = typename V::Real;
  using F = typename V::F;
  using Types = LaneTypes<V>;

  /// Of a thread's memory, before the first row.
  static void start(const ScoreFunctions& f) {
    if (f.score_mod) Program<V>::start(*f.score_mod, memory_of(f.score_mod, f));
    if (f.mask_mod) Program<V>::start(*f.mask_mod, memory_of(f.mask_mod, f));
  }

  /// What score_mod makes of scores, and its derivative there where `slopes` is not null. `places`: where the span's
  /// keys stand; null: side by side.
  static void modify(Real* s, const KeySpan& span, const RowInfo& row, const ScoreFunctions& f, const int32_t* places,
                     Real* slopes) {
    const ScoreProgram& program = *f.score_mod;
    char* memory = memory_of(&program, f);
    each_run(program, s, span, row, f, places, [&](int64_t first, int64_t vectors) {
      const Lanes<V, Lane::real> result(memory, program.result), slope(memory, program.slope);
      for (int64_t n = 0; n < vectors; ++n) V::store(s + first + n * V::kLanes, result[n]);
      if (slopes)
        for (int64_t n = 0; n < vectors; ++n) V::store(slopes + first + n * V::kLanes, slope[n]);
    });
  }

  /// -infinity where mask_mod hides.
  static void hide(Real* s, const KeySpan& span, const RowInfo& row, const ScoreFunctions& f, const int32_t* places) {
    if (places || row.whole_begin >= row.whole_end) return hide_among(s, span, row, f, places);
    constexpr int64_t kStep = 2 * V::kLanes;
    const int64_t whole = round_up(row.whole_begin > span.key ? row.whole_begin - span.key : 0, kStep);
    const int64_t rest =
        (row.whole_end < span.key + span.columns ? row.whole_end - span.key : span.columns) / kStep * kStep;
    if (whole >= rest) return hide_among(s, span, row, f, nullptr);
    if (whole > 0) hide_among(s, {span.key, whole, span.valid, false}, row, f, nullptr);
    if (rest < span.columns)
      hide_among(s + rest, {span.key + rest, span.columns - rest, span.valid - rest, false}, row, f, nullptr);
  }

 private:
  static void hide_among(Real* s, const KeySpan& span, const RowInfo& row, const ScoreFunctions& f,
                         const int32_t* places) {
    const ScoreProgram& program = *f.mask_mod;
    char* memory = memory_of(&program, f);
    each_run(program, nullptr, span, row, f, places, [&](int64_t first, int64_t vectors) {
      const F hidden = V::set1(-__builtin_inff());
      const Lanes<V, Lane::truth> visible(memory, program.result);
      for (int64_t n = 0; n < vectors; ++n) {
        Real* scores = s + first + n * V::kLanes;
        V::store(scores, Types::template select<Lane::real>(visible[n], V::load(scores), hidden));
      }
    });
  }

  static char* memory_of(const ScoreProgram* program, const ScoreFunctions& f) {
    char* memory = static_cast<char*>(f.memory);
    return program == f.mask_mod && f.score_mod ? memory + f.score_mod->memory : memory;
  }

  template <class Finish>
  TILEWISE_INLINE static void each_run(const ScoreProgram& program, const Real* s, const KeySpan& span,
                                       const RowInfo& row, const ScoreFunctions& f, const int32_t* places,
                                       const Finish& finish) {
    char* memory = memory_of(&program, f);
    Program<V>::start_row(program, f.tables, memory, row.batch_head / f.num_heads_q, row.batch_head % f.num_heads_q,
                          static_cast<int32_t>(row.query));
    for (int64_t first = 0; first < span.columns; first += program.run) {
      const int64_t count = span.columns - first < program.run ? span.columns - first : program.run;
      const typename Program<V>::Keys keys{f.first_key + span.key + first, places ? places + first : nullptr,
                                           span.valid - first};
      Program<V>::run_keys(program, f.tables, memory, keys, count, s ? s + first : nullptr);
      finish(first, count / V::kLanes);
    }
  }
};

}  // namespace tilewise::backends::cpu
