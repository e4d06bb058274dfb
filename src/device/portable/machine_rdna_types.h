// Register types of AMD's WMMA instructions, shared by the machine and its emulation.
#pragma once

#include "device/portable/platform.h"

namespace tilewise::device {

/// Accumulator of v_wmma_f32_16x16x16_*: 8 of 16 x 16 floats a lane. One vector value, so that the
/// compiler keeps it in adjacent registers.
struct RdnaAccumulator {
  typedef float Vector __attribute__((vector_size(32)));
  Vector value;
  TILEWISE_INLINE float& operator[](int i) { return reinterpret_cast<float*>(&value)[i]; }
  TILEWISE_INLINE const float& operator[](int i) const { return reinterpret_cast<const float*>(&value)[i]; }
};

/// Sixteen 16-bit elements of one row: the whole contraction of a product, the same in both halves of
/// the lanes.
typedef uint32_t RdnaOperand __attribute__((vector_size(32)));

}  // namespace tilewise::device
