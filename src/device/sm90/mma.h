// Products of a warpgroup over one stage: k loops of wgmma, issued and not waited for. The words are the tiles':
// mma_ABt multiplies with B's rows as columns of the product, mma_AB with B as it lies.
#pragma once

#include "device/common/tensors.h"
#include "device/sm90/matrix_descriptor.h"
#include "device/sm90/swizzled_tile.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

inline constexpr int kStepBytes = 32;  // of a row along the depth, in one instruction
/// Elements that one instruction multiplies along the depth.
template <int kElement>
inline constexpr int kStepDepth = kElement == kE4m3 ? 32 : 16;

/// Bytes from a tile's beginning to step k of its depth. Along: the tile's rows run along the depth.
template <class Tile>
TILEWISE_INLINE constexpr int32_t step_along(int k) {
  constexpr int kSteps = Tile::kRowBytes / kStepBytes;
  return k / kSteps * Tile::kChunkBytes + k % kSteps * kStepBytes;
}
template <class Tile>
TILEWISE_INLINE constexpr int32_t step_across(int k) {
  return k * 16 * Tile::kRowBytes;
}

/// sums = A B^T of 64 rows of A from first_row on, or sums += A B^T. Both tiles' rows run along the depth. Between
/// wgmma_fence() and wgmma_commit(), here and below.
template <class Machine, int kElement, int kTiles, class A, class B>
TILEWISE_INLINE void mma_ABt(Sm80Accumulator (&sums)[kTiles], A& a, int first_row, B& b, bool accumulate) {
  static_assert(A::kCols == B::kCols && B::kRows == 8 * kTiles);
  const auto left = MatrixDescriptor::of<Machine>(a.bytes + first_row * A::kRowBytes, 16),
             right = MatrixDescriptor::of<Machine>(b.bytes, 16);
  TILEWISE_UNROLL
  for (int k = 0; k < A::kCols / kStepDepth<kElement>; ++k) {
    Machine::template wgmma<kElement, kAlongDepth, kAlongDepth>(sums, left.advanced(step_along<A>(k)),
                                                                right.advanced(step_along<B>(k)), k > 0 || accumulate);
  }
}

/// B's rows are the depth; elements of 16 bits.
template <class Machine, int kElement, int kTiles, class A, class B>
TILEWISE_INLINE void mma_AB(Sm80Accumulator (&sums)[kTiles], A& a, int first_row, B& b, bool accumulate) {
  static_assert(A::kCols == B::kRows && B::kCols == 8 * kTiles && kElement != kE4m3);
  const auto left = MatrixDescriptor::of<Machine>(a.bytes + first_row * A::kRowBytes, 16),
             right = MatrixDescriptor::of<Machine>(b.bytes, B::kChunkBytes);
  TILEWISE_UNROLL
  for (int k = 0; k < A::kCols / kStepDepth<kElement>; ++k) {
    Machine::template wgmma<kElement, kAlongDepth, kAcrossDepth>(
        sums, left.advanced(step_along<A>(k)), right.advanced(step_across<B>(k)), k > 0 || accumulate);
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
    Machine::template wgmma<kElement, kAlongDepth>(sums, a[k], right.advanced(step_along<B>(k)), k > 0 || accumulate,
                                                   true);
  }
}

}  // namespace tilewise::device
