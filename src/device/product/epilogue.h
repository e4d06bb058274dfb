// Numbers in memory as what becomes of products' sums reads and writes them.
#pragma once

#include "device/tile/element.h"
#include "device/tile/fragment.h"

namespace tilewise::device {

/// Number `index` of NumberType kType.
template <class Machine, int kType>
TILEWISE_INLINE float load_number(const void* data, int64_t index) {
  if constexpr (kType == kNumberF32) {
    return Machine::load_global(static_cast<const float*>(data) + index);
  } else {
    return element_to_float<kType == kNumberBf16 ? kBf16 : kF16>(
        Machine::load_global(static_cast<const uint16_t*>(data) + index));
  }
}

/// kRun adjacent numbers, rounded to NumberType kType; of those behind the `left`th none. kVector: all or none.
template <class Machine, int kType, bool kVector, int kRun>
TILEWISE_INLINE void store_run(void* data, int64_t index, int64_t left, const FloatRun<kRun>& run) {
  if constexpr (kType == kNumberF32) {
    auto* const to = static_cast<float*>(data) + index;
    if constexpr (kVector && kRun > 1) {
      if (left > 0) Machine::store_global(reinterpret_cast<FloatRun<kRun>*>(to), run);
    } else {
      TILEWISE_UNROLL
      for (int i = 0; i < kRun; ++i) {
        if (i < left) Machine::store_global(to + i, run.value[i]);
      }
    }
  } else {
    constexpr int kElement = kType == kNumberBf16 ? kBf16 : kF16;
    auto* const to = static_cast<uint16_t*>(data) + index;
    WordRun<ceil_div(kRun, 2)> words;
    TILEWISE_UNROLL
    for (int i = 0; i < kRun; i += 2) {
      words.word[i / 2] = Machine::template pack<kElement>(run.value[i], run.value[minimum(i + 1, kRun - 1)]);
    }
    if constexpr (kVector && kRun > 1) {
      if (left > 0) Machine::store_global(reinterpret_cast<WordRun<kRun / 2>*>(to), words);
    } else {
      TILEWISE_UNROLL
      for (int i = 0; i < kRun; ++i) {
        if (i < left) Machine::store_global(to + i, words.element(i));
      }
    }
  }
}

}  // namespace tilewise::device
