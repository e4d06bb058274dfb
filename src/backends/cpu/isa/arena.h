// Carves aligned float arrays out of one scratch block; the same code measures and carves.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

template <class V>
class Arena {
 public:
  TILEWISE_INLINE explicit Arena(void* base) : base_(static_cast<unsigned char*>(base)) {}

  /// `count` floats, 64-byte aligned.
  TILEWISE_INLINE float* floats(int64_t count) {
    float* p = base_ ? reinterpret_cast<float*>(base_ + used_) : nullptr;
    used_ += (static_cast<size_t>(count) * sizeof(float) + 63) / 64 * 64;
    return p;
  }
  [[nodiscard]] TILEWISE_INLINE size_t used() const { return used_; }

 private:
  unsigned char* base_;
  size_t used_ = 0;
};

}  // namespace tilewise::backends::cpu
