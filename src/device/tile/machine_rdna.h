// AMD GPUs with WMMA in waves of 32 (gfx11, RDNA3).
#pragma once

#include "device/tile/machine_amd.h"
#include "device/tile/registers.h"

namespace tilewise::device {

struct RdnaMachine : AmdMachine<32> {
  /// The word of the lane that differs in bit 4.
  TILEWISE_INLINE static uint32_t swap_halves(uint32_t word) {
    return __builtin_amdgcn_permlanex16(word, word, 0x76543210u, 0xFEDCBA98u, false, false);
  }

  /// d += a * b^T of 16 x 16 and 16 x 16 elements; lane l holds row l % 16 of a and of b.
  template <int kElement>
  TILEWISE_INLINE static void mma_16x16x16(RdnaAccumulator& d, RdnaOperand a, RdnaOperand b) {
    using Bf16s = short __attribute__((ext_vector_type(16)));
    using F16s = _Float16 __attribute__((ext_vector_type(16)));
    if constexpr (kElement == kBf16) {
      d.value = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(Bf16s, a), __builtin_bit_cast(Bf16s, b),
                                                            d.value);
    } else {
      d.value =
          __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(F16s, a), __builtin_bit_cast(F16s, b), d.value);
    }
  }
};

}  // namespace tilewise::device
