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

  /// What score_mod makes of scores, and its derivative there where `slopes` is not null.
  static void modify(Real* s, const KeySpan& span, const RowInfo& row, const ScoreFunctions& f, Real* slopes) {
    const ScoreProgram& program = *f.score_mod;
    char* memory = memory_of(&program, f);
    each_run(program, s, span, row, f, [&](int64_t first, int64_t vectors) {
      const Lanes<V, Lane::real> result(memory, program.result), slope(memory, program.slope);
      for (int64_t n = 0; n < vectors; ++n) V::store(s + first + n * V::kLanes, result[n]);
      if (slopes)
        for (int64_t n = 0; n < vectors; ++n) V::store(slopes + first + n * V::kLanes, slope[n]);
    });
  }

  /// -infinity where mask_mod hides.
  static void hide(Real* s, const KeySpan& span, const RowInfo& row, const ScoreFunctions& f) {
    const ScoreProgram& program = *f.mask_mod;
    char* memory = memory_of(&program, f);
    each_run(program, nullptr, span, row, f, [&](int64_t first, int64_t vectors) {
      const F hidden = V::set1(-__builtin_inff());
      const Lanes<V, Lane::truth> visible(memory, program.result);
      for (int64_t n = 0; n < vectors; ++n) {
        Real* scores = s + first + n * V::kLanes;
        V::store(scores, Types::template select<Lane::real>(visible[n], V::load(scores), hidden));
      }
    });
  }

 private:
  static char* memory_of(const ScoreProgram* program, const ScoreFunctions& f) {
    char* memory = static_cast<char*>(f.memory);
    return program == f.mask_mod && f.score_mod ? memory + f.score_mod->memory : memory;
  }

  template <class Finish>
  TILEWISE_INLINE static void each_run(const ScoreProgram& program, const Real* s, const KeySpan& span,
                                       const RowInfo& row, const ScoreFunctions& f, const Finish& finish) {
    char* memory = memory_of(&program, f);
    Program<V>::start_row(program, f.tables, memory, row.batch_head / f.num_heads_q, row.batch_head % f.num_heads_q,
                          row.query);
    for (int64_t first = 0; first < span.columns; first += program.run) {
      const int64_t count = span.columns - first < program.run ? span.columns - first : program.run;
      Program<V>::run_keys(program, f.tables, memory, span.key + first, count, s ? s + first : nullptr);
      finish(first, count / V::kLanes);
    }
  }
};

}  // namespace tilewise::backends::cpu
