// Rows whose log-sum-exp is too large for units of log2 in the backward pass: their statistics are natural, and delta's
// lowest bit says so, which takes neither memory nor time of its own. The next bit says that some row of its warp in
// the preprocess is such a row: a lane that looks at one of each four words so knows of all.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

/// From here on rounding it, in units of log2, would move weights by 2^-11 and more.
inline constexpr float kLargeLse = 0x1p13f;
inline constexpr uint32_t kLargeMark = 1, kGroupMark = 2;

TILEWISE_INLINE bool is_large_lse(float lse2) { return magnitude(lse2) >= kLargeLse && magnitude(lse2) < kInfinity; }
TILEWISE_INLINE float with_marks(float delta, bool large, bool any_of_group) {
  const uint32_t marks = (large ? kLargeMark : 0) | (any_of_group ? kGroupMark : 0);
  return __builtin_bit_cast(float, (__builtin_bit_cast(uint32_t, delta) & ~(kLargeMark | kGroupMark)) | marks);
}
TILEWISE_INLINE bool has_large_mark(float delta) { return (__builtin_bit_cast(uint32_t, delta) & kLargeMark) != 0; }

}  // namespace tilewise::device
