// Numbers of a type that only a call knows.
#pragma once

#include "device/common/tensors.h"
#include "device/tile/element.h"

namespace tilewise::device {

/// A number of BiasType `type`.
template <class Machine>
TILEWISE_INLINE float load_number(const void* data, int64_t index, int32_t type) {
  if (type == kBiasF32) return Machine::load_global(static_cast<const float*>(data) + index);
  const uint16_t bits = Machine::load_global(static_cast<const uint16_t*>(data) + index);
  if (type == kBiasBf16) return bf16_to_float(bits);
  if constexpr (requires { Machine::widen_f16(bits); }) {
    return Machine::widen_f16(bits);
  } else {
    return element_to_float<kF16>(bits);
  }
}

}  // namespace tilewise::device
