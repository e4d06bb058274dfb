// AMD's gfx1250: WMMA of twice RDNA4's depth in waves of 32.
#pragma once

#include "device/tile/machine_amd.h"
#include "device/tile/registers.h"

namespace tilewise::device {

struct Gfx1250Machine : AmdMachine<32> {
  static constexpr int kSteps = 2, kRoomyDims = 1024;  // of 1,024 registers a lane
  static constexpr bool kSparesScalars = true;         // of which a wave has 106

  /// d += a * b^T of 16 x 32 and 16 x 32 elements; of each 16 of row l % 16 of a and of b, lane l holds those from
  /// 8 (l / 16) on.
  template <int kElement>
  TILEWISE_INLINE static void mma_16x16(RdnaAccumulator& d, const Rdna4Steps<2>& a, const Rdna4Steps<2>& b) {
    using Bf16s = __bf16 __attribute__((ext_vector_type(16)));
    using F16s = _Float16 __attribute__((ext_vector_type(16)));
    constexpr bool kNegates = false, kReuses = false;
    constexpr short kAsItIs = 0;  // the sums' sign
    if constexpr (kElement == kBf16) {
      d.value =
          __builtin_amdgcn_wmma_f32_16x16x32_bf16(kNegates, __builtin_bit_cast(Bf16s, a), kNegates,
                                                  __builtin_bit_cast(Bf16s, b), kAsItIs, d.value, kReuses, kReuses);
    } else {
      d.value = __builtin_amdgcn_wmma_f32_16x16x32_f16(kNegates, __builtin_bit_cast(F16s, a), kNegates,
                                                       __builtin_bit_cast(F16s, b), kAsItIs, d.value, kReuses, kReuses);
    }
  }
};

}  // namespace tilewise::device
