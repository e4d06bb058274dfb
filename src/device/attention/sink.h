// A head's sink and its gradient, in fp32 or in an element type. The call says at run time which of the two, since a
// block touches one number of it.
#pragma once

#include "device/tile/element.h"

namespace tilewise::device {

/// Elements of kElement where they are not fp32.
template <class Machine, int kElement>
TILEWISE_INLINE float load_sink(const SinkTensor& sink, int64_t head) {
  const int64_t at = head * sink.stride;
  if (sink.type == kBiasF32) return Machine::load_global(static_cast<const float*>(sink.data) + at);
  return element_to_float<kElement>(Machine::load_global(static_cast<const ElementBits<kElement>*>(sink.data) + at));
}

template <class Machine, int kElement>
TILEWISE_INLINE void store_dsink(const SinkTensor& dsink, int64_t head, float value) {
  const int64_t at = head * dsink.stride;
  if (dsink.type == kBiasF32) return Machine::store_global(static_cast<float*>(dsink.data) + at, value);
  const auto element = static_cast<ElementBits<kElement>>(Machine::template pack<kElement>(value, 0.0f));
  Machine::store_global(static_cast<ElementBits<kElement>*>(dsink.data) + at, element);
}

}  // namespace tilewise::device
