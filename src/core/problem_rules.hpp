// Pure rules about a Problem that more than one file needs: defaults, the one normal form,
// and how the causal mask folds into the window.
#pragma once

#include <cmath>
#include <cstdint>

#include "tilewise/problem.hpp"

namespace tilewise::core {

/// 1/sqrt(head_dim).
[[nodiscard]] inline double default_softmax_scale(std::int64_t head_dim) {
  return 1.0 / std::sqrt(static_cast<double>(head_dim));
}

/// window_right with the causal mask folded in; -1: unbounded.
[[nodiscard]] constexpr std::int64_t folded_window_right(const Problem& problem) {
  return problem.mask == Mask::causal ? 0 : problem.window_right;
}

/// The one form of all Problems that mean the same computation, so that they compare and hash
/// equal: a window ending on the diagonal is Mask::causal, dropout_p is rounded to a multiple of
/// 2^-16, and whatever cannot matter takes its default (the alignment without mask, window or
/// ALiBi; a seed tensor without dropout). Values that validate() rejects are left alone.
[[nodiscard]] Problem canonical(Problem problem);

}  // namespace tilewise::core
