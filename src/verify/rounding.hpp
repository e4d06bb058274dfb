// What one rounding to a dtype may lose, and how far its numbers reach.
#pragma once

#include <limits>

#include "tilewise/tensor.hpp"

namespace tilewise::verify {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Largest relative error of one rounding to dtype, and the absolute one among subnormals. Of f32 and f64 the latter is
/// what kernels may lose by flushing them.
[[nodiscard]] double unit_roundoff(DType dtype);
[[nodiscard]] double smallest_rounding(DType dtype);
/// The largest finite number.
[[nodiscard]] double largest_finite(DType dtype);

}  // namespace tilewise::verify
