// Steps over fp4 on NEON: 32 elements in 16 bytes, both bytes of each bf16 looked up.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/code_steps.h"
#include "backends/cpu/isa/simd_neon.h"

namespace tilewise::backends::cpu {

template <class C>
struct NeonSteps : StepsInOrder<C> {
  static constexpr int kVectors = StepsInOrder<C>::kVectors;
  TILEWISE_INLINE static void load(float32x4_t (&w)[kVectors], const E2m1* codes) {
    uint16x8_t numbers[4];
    Neon::widen(vld1q_u8(reinterpret_cast<const uint8_t*>(codes)), numbers);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      if constexpr (kPairs<C>) {
        w[i] = vreinterpretq_f32_u16(numbers[i]);
      } else {
        w[2 * i] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(numbers[i]), 16));
        w[2 * i + 1] = vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(numbers[i]), 16));
      }
    }
  }
};

}  // namespace tilewise::backends::cpu
