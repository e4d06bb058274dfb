// What the elements of tensors and tiles are. Every tensor and every tile names its own ElementType.
#pragma once

#include "device/common/float16.h"
#include "device/common/tensors.h"
#include "device/tile/platform.h"

namespace tilewise::device {

template <int kElement>
struct ElementTraits {
  static_assert(kElement == kBf16 || kElement == kF16, "no such element type");
  using Bits = uint16_t;
};
template <>
struct ElementTraits<kE4m3> {
  using Bits = uint8_t;
};
/// An element as it lies in memory.
template <int kElement>
using ElementBits = typename ElementTraits<kElement>::Bits;

/// An element from its bits. For AMD in one instruction: its compiler may leave the loop of f16_to_float() a function.
template <int kElement>
TILEWISE_INLINE float element_to_float(uint32_t bits) {
  const auto half = static_cast<uint16_t>(bits);
  if constexpr (kElement == kBf16) {
    return bf16_to_float(half);
  } else {
#if defined(__AMDGCN__)
    return static_cast<float>(__builtin_bit_cast(_Float16, half));
#else
    return f16_to_float(half);
#endif
  }
}

}  // namespace tilewise::device
