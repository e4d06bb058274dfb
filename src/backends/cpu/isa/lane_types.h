// Vectors of a program's registers, one lane a key, in the compiler's own vector types: every instruction set has them.
// Templates are given what lanes hold, not vectors: dependent vector types lose their size as arguments (GCC 12).
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/elements.h"
#include "backends/cpu/score_program.h"

namespace tilewise::backends::cpu {

/// Ints of a Real's size.
template <class Real>
struct WordOf {
  using Type = int32_t;
  using Unsigned = uint32_t;
};
template <>
struct WordOf<double> {
  using Type = int64_t;
  using Unsigned = uint64_t;
};

/// The vector of a lane type, one lane of it, and what its ints wrap around in.
template <class V, Lane kLane>
struct LaneVector {  // words and truths
  using Scalar = typename WordOf<typename V::Real>::Type;
  typedef Scalar Type __attribute__((vector_size(sizeof(Scalar) * V::kLanes)));
  typedef typename WordOf<typename V::Real>::Unsigned Wrapping __attribute__((vector_size(sizeof(Scalar) * V::kLanes)));
};
template <class V>
struct LaneVector<V, Lane::wide> {
  using Scalar = int64_t;
  typedef int64_t Type __attribute__((vector_size(sizeof(int64_t) * V::kLanes)));
  typedef uint64_t Wrapping __attribute__((vector_size(sizeof(int64_t) * V::kLanes)));
};
template <class V>
struct LaneVector<V, Lane::real> {
  using Scalar = typename V::Real;
  typedef Scalar Type __attribute__((vector_size(sizeof(Scalar) * V::kLanes)));
  typedef Scalar Wrapping __attribute__((vector_size(sizeof(Scalar) * V::kLanes)));
};

/// Vectors of a register, one after the other, or the one that it has. A copy: whatever is written into the memory
/// might otherwise be an instruction to the compiler.
template <class V, Lane kLane>
class Lanes {
 public:
  using X = typename LaneVector<V, kLane>::Type;

  TILEWISE_INLINE Lanes(char* memory, Register r)
      : first_(memory + r.at), step_(r.varies ? static_cast<int64_t>(sizeof(X)) : 0) {}
  [[nodiscard]] TILEWISE_INLINE X operator[](int64_t n) const {
    X x;
    __builtin_memcpy(&x, first_ + n * step_, sizeof x);
    return x;
  }
  TILEWISE_INLINE void set(int64_t n, X x) const { __builtin_memcpy(first_ + n * step_, &x, sizeof x); }

 private:
  char* first_;
  int64_t step_;
};

template <class V>
struct LaneTypes {
  using R = typename LaneVector<V, Lane::real>::Type;
  using I = typename LaneVector<V, Lane::word>::Type;
  using L = typename LaneVector<V, Lane::wide>::Type;
  static constexpr bool kSingle = sizeof(typename V::Real) == sizeof(float);

  TILEWISE_INLINE static I iota() {
    I lanes{};
    for (int i = 0; i < V::kLanes; ++i) lanes[i] = i;
    return lanes;
  }

  template <Lane kLane>
  TILEWISE_INLINE static auto select(I condition, typename LaneVector<V, kLane>::Type a,
                                     typename LaneVector<V, kLane>::Type b) {
    if constexpr (kLane == Lane::wide) {
      return __builtin_convertvector(condition, L) ? a : b;
    } else {
      return condition ? a : b;
    }
  }

  TILEWISE_INLINE static bool any(I truths) {
    const R marks = __builtin_convertvector(truths, R);  // 0 and -1
    return V::any(V::greater(V::zero(), marks));
  }
};

}  // namespace tilewise::backends::cpu
