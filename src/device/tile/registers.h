// Register types of matrix instructions, shared by each machine and its emulation.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

/// mma.sync's accumulator of 16 rows x 8 columns.
struct Sm80Accumulator {
  float value[4];
  TILEWISE_INLINE float& operator[](int i) { return value[i]; }
  TILEWISE_INLINE const float& operator[](int i) const { return value[i]; }
};

// NVRTC knows no vector types.
#if !defined(__CUDACC_RTC__) && !defined(__CUDACC__)

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
  /// See platform.h.
  TILEWISE_INLINE static Pair rounded_product(Pair x, float factor) {
#if defined(__clang__)
#pragma clang fp contract(off)
    return x * factor;
#else
    return Pair{device::rounded_product(x[0], factor), device::rounded_product(x[1], factor)};
#endif
  }
  /// x * factor - less, each rounded once.
  TILEWISE_INLINE static Pair multiply_subtract(Pair x, float factor, float less) {
#if defined(__clang__)
    return __builtin_elementwise_fma(x, Pair{factor, factor}, -Pair{less, less});
#else
    return Pair{fused_multiply_add(x[0], factor, -less), fused_multiply_add(x[1], factor, -less)};
#endif
  }
};

/// Eight 16-bit elements of one row: half of the contraction of a 32x32x16 product.
typedef uint32_t CdnaOperand __attribute__((vector_size(16)));

/// Two stretches of 16 fp8 bytes of one row: half of the contraction of a 32x32x64 product.
struct CdnaBytes {
  CdnaOperand half[2];
};

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

/// Eight 16-bit elements of one row: of 16 of the contraction, those that a half of the lanes has. An instruction takes
/// one step or several.
typedef uint32_t Rdna4Operand __attribute__((vector_size(16)));
template <int kSteps>
struct Rdna4Steps {
  Rdna4Operand step[kSteps];
};

#endif

}  // namespace tilewise::device
