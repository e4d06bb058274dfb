// Products of tiles as kernels write them. The accumulators say which machine's operations are meant, and tiles that
// streams have loaded are read the way the product needs them.
#pragma once

#include "device/tile/element.h"
#include "device/tile/fragment.h"
#include "device/tile/stream_tile.h"

namespace tilewise::device {

template <class Operand>
TILEWISE_INLINE const Operand& by_rows(const Operand& operand) {
  return operand;
}
template <int kElement, int Rows, int Depth, int kUse, bool kTransposedCopies>
TILEWISE_INLINE const auto& by_rows(const StreamTile<kElement, Rows, Depth, kUse, kTransposedCopies>& tile) {
  return tile.by_rows();
}
template <class Operand>
TILEWISE_INLINE const Operand& by_columns(const Operand& operand) {
  return operand;
}
template <int kElement, int Rows, int Depth, int kUse, bool kTransposedCopies>
TILEWISE_INLINE const auto& by_columns(const StreamTile<kElement, Rows, Depth, kUse, kTransposedCopies>& tile) {
  return tile.by_columns();
}

/// to += A B^T. A: an operand in registers, or rows of a tile.
template <class Ops, int Rows, int Cols, class A, class B>
TILEWISE_INLINE void mma_ABt(Fragment<Ops, Rows, Cols>& to, const A& a, const B& b) {
  static_assert(A::kElement == B::kElement, "a matrix instruction multiplies elements of one type");
  Ops::mma_ABt(to, a, by_rows(b));
}

/// The same as a stream, on machines that have such: read_ahead() has read the first steps' operands, and
/// beside(step, steps) is called after each step, while the matrix unit is at work.
template <class Ops, int Rows, int Cols, class A, class B, class Ahead, class Beside>
TILEWISE_INLINE void stream_ABt(Fragment<Ops, Rows, Cols>& to, const A& a, const B& b, Ahead& ahead,
                                const Beside& beside) {
  static_assert(A::kElement == B::kElement, "a matrix instruction multiplies elements of one type");
  Ops::stream_ABt(to, a, by_rows(b), ahead, beside);
}
template <class Ops, class B, class Ahead>
TILEWISE_INLINE void read_ahead(Ahead& ahead, const B& b) {
  Ops::read_ahead(ahead, by_rows(b));
}

/// visit(i) for the share of kAll pieces of work that goes beside a step of a stream.
template <int kAll, class Visit>
TILEWISE_INLINE void for_share(int step, int steps, const Visit& visit) {
  TILEWISE_UNROLL
  for (int i = 0; i < kAll; ++i) {
    if (i * steps / kAll == step) visit(i);
  }
}

/// mma_AB() likewise, after read_columns_ahead().
template <class Ops, int Rows, int Cols, class A, class B, class Ahead, class Beside>
TILEWISE_INLINE void stream_AB(Fragment<Ops, Rows, Cols>& to, const A& a, const B& b, Ahead& ahead,
                               const Beside& beside) {
  static_assert(A::kElement == B::kElement, "a matrix instruction multiplies elements of one type");
  Ops::stream_AB(to, a, by_columns(b), ahead, beside);
}
template <class Ops, class B, class Ahead>
TILEWISE_INLINE void read_columns_ahead(Ahead& ahead, const B& b) {
  Ops::read_ahead(ahead, by_columns(b));
}

/// to += A B. A: an operand in registers. Where waves share the rows of `to`, each has a part of its columns.
template <class Ops, int Rows, int Cols, bool kByFours, class A, class B, int kParts = 1>
TILEWISE_INLINE void mma_AB(Fragment<Ops, Rows, Cols, kByFours>& to, const A& a, const B& b,
                            ColumnPart<kParts> part = {0}) {
  static_assert(A::kElement == B::kElement, "a matrix instruction multiplies elements of one type");
  if constexpr (kParts == 1) {
    Ops::mma_AB(to, a, by_columns(b));
  } else {
    Ops::mma_AB(to, a, by_columns(b), part);
  }
}

/// to += A^T B, both read from tiles. On machines that read tiles transposed.
template <class Ops, int Rows, int Cols, class A, class B, int kParts>
TILEWISE_INLINE void mma_AtB(Fragment<Ops, Rows, Cols>& to, const A& a, const B& b, ColumnPart<kParts> part) {
  static_assert(A::kElement == B::kElement, "a matrix instruction multiplies elements of one type");
  Ops::mma_AtB(to, a, b, part);
}

/// Accumulators rounded to elements of a type, as the left operand of mma_AB().
template <int kElement, class Ops, int Rows, int Cols>
TILEWISE_INLINE auto to_operand(const Fragment<Ops, Rows, Cols>& from) {
  return Ops::template to_operand<kElement>(from);
}

/// What to_operand() leaves out: each number without its rounded value. Of one whose rounded value is no number, 0.
template <int kElement, class Ops, int Rows, int Cols>
TILEWISE_INLINE void keep_rounding_errors(Fragment<Ops, Rows, Cols>& of) {
  using Machine = typename Ops::Machine;
  of.for_each(Machine::lane(), [](int, int, auto&& x) {
    const float rest = x - element_to_float<kElement>(Machine::template pack<kElement>(x, x));
    x = rest == rest ? rest : 0.0f;
  });
}

}  // namespace tilewise::device
