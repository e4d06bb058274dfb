// Carves aligned arrays of Reals out of one scratch block; the same code measures and carves.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

template <class V>
class Arena {
  using Real = typename V::Real;

 public:
  TILEWISE_INLINE explicit Arena(void* base) : base_(static_cast<unsigned char*>(base)) {}

  /// `count` Reals, 64-byte aligned.
  TILEWISE_INLINE Real* reals(int64_t count) {
    Real* p = base_ ? reinterpret_cast<Real*>(base_ + used_) : nullptr;
    used_ += (static_cast<size_t>(count) * sizeof(Real) + 63) / 64 * 64;
    return p;
  }
  [[nodiscard]] TILEWISE_INLINE size_t used() const { return used_; }

 private:
  unsigned char* base_;
  size_t used_ = 0;
};

}  // namespace tilewise::backends::cpu
