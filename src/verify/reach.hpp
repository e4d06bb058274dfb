// Where a NaN or infinity among the inputs may show though the reference, which skips what is not seen, stays finite.
//
// Positions that a mask, a window, a bias or dropout hides have weight and score gradient 0. A kernel that multiplies
// tiles multiplies them by what k, v, q or dout hold there, and 0 times NaN is NaN: in the same column of a row of the
// same sequence, nowhere else. Not so in rows that see nothing, in softmax_lse, dbias and dsink. Where an infinite
// product alone hides a position, its score gradient may be NaN too.
#pragma once

#include <vector>

#include "verify/error_bounds.hpp"

namespace tilewise::verify {

/// Fills ErrorBounds::reach of a call with special values, whose reference results are `expected`.
void mark_reach(const CallTensors& tensors, const std::vector<Output>& expected, std::vector<ErrorBounds>& bounds);

}  // namespace tilewise::verify
