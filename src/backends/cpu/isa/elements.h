// Element types as the CPU kernels see them, and the one attribute they need: everything
// inline is forced inline, so that no instruction set's code can serve another's.
#pragma once

#include <stdint.h>

#define TILEWISE_INLINE [[gnu::always_inline]] inline

namespace tilewise::backends::cpu {

/// Bit patterns; converted by the vector types' load and store.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
/// fp8 of device/common/float8.h: read alone, and exact in every other type.
struct E4m3 {
  uint8_t bits;
};
/// A scale of device/common/float8_e8m0.h: read alone.
struct E8m0 {
  uint8_t bits;
};
/// Two numbers of fp4 (device/common/float4.h), the first in the low half: read alone, and exact in every other type.
struct E2m1 {
  uint8_t pair;
};

}  // namespace tilewise::backends::cpu
