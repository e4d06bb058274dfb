// AMD GPUs with WMMA whose two halves of a wave of 32 hold different elements (gfx12, RDNA4).
#pragma once

#include "device/tile/machine_amd.h"
#include "device/tile/registers.h"

namespace tilewise::device {

struct Rdna4Machine : AmdMachine<32> {
  static constexpr int kSteps = 1, kRoomyDims = 192;

  /// d += a * b^T of 16 x 16 and 16 x 16 elements; lane l holds elements 8 (l / 16) and on of row l % 16 of a and of b.
  template <int kElement>
  TILEWISE_INLINE static void mma_16x16(RdnaAccumulator& d, const Rdna4Steps<1>& a, const Rdna4Steps<1>& b) {
    using Bf16s = short __attribute__((ext_vector_type(8)));
    using F16s = _Float16 __attribute__((ext_vector_type(8)));
    if constexpr (kElement == kBf16) {
      d.value = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(Bf16s, a),
                                                                  __builtin_bit_cast(Bf16s, b), d.value);
    } else {
      d.value = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(F16s, a),
                                                                 __builtin_bit_cast(F16s, b), d.value);
    }
  }
};

}  // namespace tilewise::device
