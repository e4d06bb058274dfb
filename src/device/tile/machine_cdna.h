// AMD GPUs with MFMA (gfx90a, gfx942, gfx950). Lanes are a wave's 64.
#pragma once

#include "device/tile/machine_amd.h"
#include "device/tile/registers.h"

namespace tilewise::device {

struct CdnaMachine : AmdMachine<64> {
#if defined(__gfx942__) || defined(__gfx950__)
  static constexpr int kDies = 8;
#endif
  /// d += a * b^T of 32 x 16 and 32 x 16 elements; lane l holds row l % 32 of a and of b. The order of
  /// the 16 is free as long as a and b agree.
  template <int kElement>
  TILEWISE_INLINE static void mma_32x32x16(CdnaAccumulator& d, CdnaOperand a, CdnaOperand b) {
#if defined(__gfx950__)
    using Bf16s = __bf16 __attribute__((ext_vector_type(8)));
    using F16s = _Float16 __attribute__((ext_vector_type(8)));
    if constexpr (kElement == kBf16) {
      d.value = __builtin_amdgcn_mfma_f32_32x32x16_bf16(__builtin_bit_cast(Bf16s, a), __builtin_bit_cast(Bf16s, b),
                                                        d.value, 0, 0, 0);
    } else {
      d.value = __builtin_amdgcn_mfma_f32_32x32x16_f16(__builtin_bit_cast(F16s, a), __builtin_bit_cast(F16s, b),
                                                       d.value, 0, 0, 0);
    }
#else
    struct Parts {
      uint64_t low, high;
    };
    const Parts left = __builtin_bit_cast(Parts, a), right = __builtin_bit_cast(Parts, b);
    mma_32x32x8<kElement>(d, left.low, right.low);
    mma_32x32x8<kElement>(d, left.high, right.high);
#endif
  }

 private:
  template <int kElement>
  TILEWISE_INLINE static void mma_32x32x8(CdnaAccumulator& d, uint64_t a, uint64_t b) {
    using Bf16s = short __attribute__((ext_vector_type(4)));
    using F16s = _Float16 __attribute__((ext_vector_type(4)));
    if constexpr (kElement == kBf16) {
      d.value = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(Bf16s, a), __builtin_bit_cast(Bf16s, b),
                                                         d.value, 0, 0, 0);
    } else {
      d.value = __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(F16s, a), __builtin_bit_cast(F16s, b), d.value,
                                                     0, 0, 0);
    }
  }
};

}  // namespace tilewise::device
