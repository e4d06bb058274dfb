// Which rows' log-sum-exp is too large for units of log2 in the backward pass.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

/// From here on rounding it, in units of log2, would move weights by 2^-11 and more.
inline constexpr float kLargeLse = 0x1p13f;

TILEWISE_INLINE bool is_large_lse(float lse2) { return magnitude(lse2) >= kLargeLse && magnitude(lse2) < kInfinity; }

}  // namespace tilewise::device
