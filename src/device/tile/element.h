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

/// An element from its bits.
template <int kElement>
TILEWISE_INLINE float element_to_float(uint32_t bits) {
  return kElement == kBf16 ? bf16_to_float(static_cast<uint16_t>(bits)) : f16_to_float(static_cast<uint16_t>(bits));
}

}  // namespace tilewise::device
