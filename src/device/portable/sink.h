// A head's sink and its gradient, in fp32 or in the tensors' element type: which of them the call says,
// since a block touches one number of it.
#pragma once

#include "device/common/float16.h"
#include "device/portable/block_rows.h"

namespace tilewise::device {

/// An element of the kernel's type from its bits.
template <KernelConfig C>
TILEWISE_INLINE float element_to_float(uint32_t bits) {
  return C.element == kBf16 ? bf16_to_float(static_cast<uint16_t>(bits)) : f16_to_float(static_cast<uint16_t>(bits));
}

template <class Machine, KernelConfig C>
TILEWISE_INLINE float load_sink(const AttentionParams& p, int64_t head) {
  const int64_t at = head * p.sink_stride;
  if (p.sink_type == kBiasF32) return Machine::load_global(static_cast<const float*>(p.sink) + at);
  return element_to_float<C>(Machine::load_global(static_cast<const uint16_t*>(p.sink) + at));
}

template <class Machine, KernelConfig C>
TILEWISE_INLINE void store_dsink(const AttentionParams& p, int64_t head, float value) {
  const int64_t at = head * p.dsink_stride;
  if (p.sink_type == kBiasF32) return Machine::store_global(static_cast<float*>(p.dsink) + at, value);
  const auto element = static_cast<uint16_t>(Machine::template pack<C.element>(value, 0.0f));
  Machine::store_global(static_cast<uint16_t*>(p.dsink) + at, element);
}

}  // namespace tilewise::device
