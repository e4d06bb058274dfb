// How far from the reference a correct kernel may be, element by element.
//
// The model (first order; u = 2^-24, for f64 2^-53; r = unit roundoff of a 16-bit dtype, else 0):
//   - a kernel computes scores, weights and every sum in f32, or in f64 where q is. A score's error is a few u of the
//     magnitudes it was summed from, growing with the square root of the number of terms. Where
//     weights are 16-bit operands their exponential may be coarser, by a hundredth of r;
//   - a weight p and a score gradient ds is rounded to the tensors' dtype before it enters a matrix product (r), ds
//     perhaps from factors p and dp - delta that were rounded before. Such roundings are independent: `sigma` counts
//     three of them as the square root of 3;
//   - outputs are rounded once to their dtype, and so are the reference's.
// `limit` adds magnitudes (nothing may lie beyond); `sigma` adds the independent roundings in
// quadrature and so predicts the root mean square, which shows lost precision that hides below
// the limits. Where no term contributes both are 0: the result must be exact.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "verify/call_tensors.hpp"
#include "verify/rounding.hpp"

namespace tilewise::verify {

/// Bounds of every output of a call whose reference results are `expected`. tanh_error: see DrawnCall::bounds().
[[nodiscard]] std::vector<ErrorBounds> error_bounds(const CallTensors& tensors, const std::vector<Output>& expected,
                                                    double tanh_error = 0.0);

}  // namespace tilewise::verify
