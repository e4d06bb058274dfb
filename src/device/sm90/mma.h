// Products of a warpgroup over one stage: k loops of wgmma, issued and not waited for. The words are the tiles':
// mma_ABt multiplies with B's rows as columns of the product, mma_AB with B as it lies, mma_AtB with A's columns as
// rows.
#pragma once

#include "device/common/tensors.h"
#include "device/sm90/matrix_descriptor.h"
#include "device/sm90/swizzled_tile.h"
#include "device/sm90/warpgroup.h"
#include "device/tile/registers.h"

namespace tilewise::device {

inline constexpr int kStepBytes = 32;  // of a K-major row, in one instruction
/// K of one instruction, in elements.
template <int kElement>
inline constexpr int kStepDepth = kElement == kE4m3 ? 32 : 16;

/// Bytes from a K-major tile's beginning to step k, and from an MN-major one's.
template <class Tile>
TILEWISE_INLINE constexpr int32_t k_major_step(int k) {
  constexpr int kSteps = Tile::kRowBytes / kStepBytes;
  return k / kSteps * Tile::kChunkBytes + k % kSteps * kStepBytes;
}
template <class Tile>
TILEWISE_INLINE constexpr int32_t mn_major_step(int k) {
  return k * 16 * Tile::kRowBytes;
}

/// sums = A B^T of 64 rows of A from first_row on, or sums += A B^T. Both tiles are K-major. Between
/// wgmma_fence() and wgmma_commit(), here and below.
template <class Machine, int kElement, int kTiles, class A, class B>
TILEWISE_INLINE void mma_ABt(Sm80Accumulator (&sums)[kTiles], A& a, int first_row, B& b, bool accumulate) {
  static_assert(A::kCols == B::kCols && B::kRows == 8 * kTiles);
  const auto left = MatrixDescriptor::of<Machine>(a.bytes + first_row * A::kRowBytes, 16),
             right = MatrixDescriptor::of<Machine>(b.bytes, 16);
  TILEWISE_UNROLL
  for (int k = 0; k < A::kCols / kStepDepth<kElement>; ++k) {
    Machine::template wgmma<kElement, kKMajor, kKMajor>(sums, left.advanced(k_major_step<A>(k)),
                                                        right.advanced(k_major_step<B>(k)), k > 0 || accumulate);
  }
}

/// B is MN-major; elements of 16 bits.
template <class Machine, int kElement, int kTiles, class A, class B>
TILEWISE_INLINE void mma_AB(Sm80Accumulator (&sums)[kTiles], A& a, int first_row, B& b, bool accumulate) {
  static_assert(A::kCols == B::kRows && B::kCols == 8 * kTiles && kElement != kE4m3);
  const auto left = MatrixDescriptor::of<Machine>(a.bytes + first_row * A::kRowBytes, 16),
             right = MatrixDescriptor::of<Machine>(b.bytes, B::kChunkBytes);
  TILEWISE_UNROLL
  for (int k = 0; k < A::kCols / kStepDepth<kElement>; ++k) {
    Machine::template wgmma<kElement, kKMajor, kMnMajor>(sums, left.advanced(k_major_step<A>(k)),
                                                         right.advanced(mn_major_step<B>(k)), k > 0 || accumulate);
  }
}

/// sums = A^T B of 64 columns of A from first_col on, which begins a chunk, or sums += A^T B. Both are MN-major;
/// elements of 16 bits. kSteps: how many of the rows count, in steps of K.
template <class Machine, int kElement, int kSteps, int kTiles, class A, class B>
TILEWISE_INLINE void mma_AtB(Sm80Accumulator (&sums)[kTiles], A& a, int first_col, B& b, bool accumulate) {
  static_assert(A::kRows == B::kRows && B::kCols == 8 * kTiles && kElement != kE4m3);
  static_assert(kSteps * kStepDepth<kElement> <= A::kRows);
  const auto left = MatrixDescriptor::of<Machine>(a.chunk(first_col / A::kChunkColumns), A::kChunkBytes),
             right = MatrixDescriptor::of<Machine>(b.bytes, B::kChunkBytes);
  TILEWISE_UNROLL
  for (int k = 0; k < kSteps; ++k) {
    Machine::template wgmma<kElement, kMnMajor, kMnMajor>(sums, left.advanced(mn_major_step<A>(k)),
                                                          right.advanced(mn_major_step<B>(k)), k > 0 || accumulate);
  }
}

/// sums = A^T B^T likewise, with all of A's rows; B is K-major.
template <class Machine, int kElement, int kTiles, class A, class B>
TILEWISE_INLINE void mma_AtBt(Sm80Accumulator (&sums)[kTiles], A& a, int first_col, B& b, bool accumulate) {
  static_assert(A::kRows == B::kCols && B::kRows == 8 * kTiles && kElement != kE4m3);
  const auto left = MatrixDescriptor::of<Machine>(a.chunk(first_col / A::kChunkColumns), A::kChunkBytes),
             right = MatrixDescriptor::of<Machine>(b.bytes, 16);
  TILEWISE_UNROLL
  for (int k = 0; k < A::kRows / kStepDepth<kElement>; ++k) {
    Machine::template wgmma<kElement, kMnMajor, kKMajor>(sums, left.advanced(mn_major_step<A>(k)),
                                                         right.advanced(k_major_step<B>(k)), k > 0 || accumulate);
  }
}

/// A in registers: an operand of another element type that was widened there, or a product's rounded sums.
template <class Machine, int kElement, int kTiles, int kSteps, class B>
TILEWISE_INLINE void mma_ABt(Sm80Accumulator (&sums)[kTiles], const WgmmaRegisters (&a)[kSteps], B& b,
                             bool accumulate) {
  static_assert(B::kCols == kSteps * kStepDepth<kElement> && B::kRows == 8 * kTiles);
  const auto right = MatrixDescriptor::of<Machine>(b.bytes, 16);
  TILEWISE_UNROLL
  for (int k = 0; k < kSteps; ++k) {
    Machine::template wgmma<kElement, kKMajor>(sums, a[k], right.advanced(k_major_step<B>(k)), k > 0 || accumulate,
                                               true);
  }
}

}  // namespace tilewise::device
