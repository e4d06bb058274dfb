// Register types of AMD's MFMA instructions, shared by the machine and its emulation.
#pragma once

#include "device/portable/platform.h"

namespace tilewise::device {

/// Accumulator of v_mfma_f32_32x32x*: 16 of 32 x 32 floats a lane. One vector value, so that the
/// compiler keeps it in adjacent registers.
struct CdnaAccumulator {
  typedef float Vector __attribute__((vector_size(64)));
  /// Two adjacent registers: CDNA multiplies and adds both in one instruction.
  typedef float Pair __attribute__((vector_size(8), may_alias));
  Vector value;
  TILEWISE_INLINE float& operator[](int i) { return reinterpret_cast<float*>(&value)[i]; }
  TILEWISE_INLINE const float& operator[](int i) const { return reinterpret_cast<const float*>(&value)[i]; }
  /// Registers i and i + 1, i even.
  TILEWISE_INLINE Pair& pair(int i) { return reinterpret_cast<Pair*>(&value)[i / 2]; }
};

/// Eight 16-bit elements of one row: half of the contraction of a 32x32x16 product.
typedef uint32_t CdnaOperand __attribute__((vector_size(16)));

}  // namespace tilewise::device
