// Quantised elements on their way into operands. Scales of short blocks join their elements, as far as these stay exact
// in every type that is multiplied: with the row's greatest power of two taken out. What is left is one factor of the
// row's part.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/operands.h"
#include "device/common/float8.h"
#include "device/common/float8_e8m0.h"

namespace tilewise::backends::cpu {

/// Most elements that widen_row() takes at once, and short blocks of them.
inline constexpr int64_t kWidened = 512, kWidenedBlocks = kWidened / 16;

/// Blocks of 16 or 32.
TILEWISE_INLINE bool has_short_blocks(const GemmScales& s) {
  return s.data && (s.block_depth == 16 || s.block_depth == 32);
}

/// Whether scales change along the depth, other than those that join the elements.
TILEWISE_INLINE bool is_scaled_within(const GemmScales& s, int64_t depth) {
  return s.data && !has_short_blocks(s) && s.block_depth < depth && s.depth_stride != 0;
}

TILEWISE_INLINE float scale_value(GemmElement element, const void* data, int64_t index) {
  if (element == GemmElement::f32) return static_cast<const float*>(data)[index];
  const uint8_t byte = static_cast<const uint8_t*>(data)[index];
  return element == GemmElement::e8m0 ? device::e8m0_to_float(byte) : device::e4m3_to_float(byte);
}

/// Of the block that holds an element.
TILEWISE_INLINE float scale_at(const GemmScales& s, int64_t row, int64_t depth) {
  if (!s.data) return 1.0f;
  return scale_value(s.element, s.data, row / s.block_rows * s.row_stride + depth / s.block_depth * s.depth_stride);
}

/// Short blocks of a row's elements [depth, depth + size), whose depth_stride is that of the scales.
TILEWISE_INLINE const uint8_t* short_scales(const GemmScales& s, int64_t row, int64_t depth) {
  return static_cast<const uint8_t*>(s.data) + row / s.block_rows * s.row_stride +
         (s.block_depth == 32 ? depth >> 5 : depth >> 4) * s.depth_stride;
}

/// Scales [0, count) of short blocks as numbers, and some behind them: out has room to whole sixteens.
template <class C>
TILEWISE_INLINE void read_short_scales(const GemmScales& s, const uint8_t* bytes, int64_t count, float* out) {
  using V = typename C::V;
  constexpr int64_t kChunk = 16;
  for (int64_t i = 0; i < count; i += kChunk) {
    uint8_t codes[kChunk] = {};
    const int64_t left = count - i < kChunk ? count - i : kChunk;
    if (s.depth_stride == 1 && left == kChunk)
      __builtin_memcpy(codes, bytes + i, kChunk);
    else
      for (int64_t j = 0; j < left; ++j) codes[j] = bytes[(i + j) * s.depth_stride];
    for (int64_t j = 0; j < kChunk; j += V::kLanes)
      V::store(out + i + j, s.element == GemmElement::e8m0 ? V::load(reinterpret_cast<const E8m0*>(codes) + j)
                                                           : V::load(reinterpret_cast<const E4m3*>(codes) + j));
  }
}

/// factors[i] of each short block of elements [depth, depth + size) of a row, and what is common to all of them: their
/// greatest power of two, so that factors are at most 1 and none is subnormal; those below 2^-110 of it are 2^-110.
/// Factors in e4m3 are left as they are: their products with e2m1 have six bits. There is room to whole sixteens.
template <class C>
TILEWISE_INLINE float short_factors(const GemmScales& s, int64_t row, int64_t depth, int64_t size, float* factors) {
  using V = typename C::V;
  const int64_t blocks = (size + s.block_depth - 1) >> (s.block_depth == 32 ? 5 : 4);
  read_short_scales<C>(s, short_scales(s, row, depth), blocks, factors);
  if (s.element == GemmElement::e4m3) return 1.0f;
  for (int64_t i = blocks; i % 16 != 0; ++i) factors[i] = 0;
  typename V::F greatest = V::set1(0x1p-127f);
  for (int64_t i = 0; i < blocks; i += V::kLanes) greatest = V::max(V::load(factors + i), greatest);  // without NaN
  const float common = V::reduce_max(greatest);
  const typename V::F inverse = V::set1(1.0f / common), least = V::set1(0x1p-110f);
  for (int64_t i = 0; i < blocks; i += V::kLanes)
    V::store(factors + i, V::max(least, V::mul(V::load(factors + i), inverse)));  // NaN stays
  return common;
}

/// Elements [0, size) as units, zeros in the padding to a whole number of two vectors. `factors` are those of each
/// `block` elements.
template <class C, class T>
void widen_scaled(const T* codes, int64_t size, const float* factors, int64_t block, RealOf<C>* units) {
  using V = typename C::V;
  constexpr int64_t kStep = 2 * V::kLanes;
  const int shift = block == 32 ? 5 : 4;
  const auto widen = [&](const T* from, int64_t at) {
    const typename V::F first = V::set1(factors[at >> shift]), second = V::set1(factors[(at + V::kLanes) >> shift]);
    C::store_row(units, at, V::mul(V::load(from), first), V::mul(V::load(from + V::kLanes / kPacked<T>), second));
  };
  int64_t at = 0;
  for (; at + kStep <= size; at += kStep) widen(codes + at / kPacked<T>, at);
  if (at == size) return;
  T tail[kStep] = {};
  for (int64_t i = at; i < size; i += kPacked<T>) tail[(i - at) / kPacked<T>] = codes[i / kPacked<T>];
  if constexpr (kPacked<T> > 1)
    if (size % 2 != 0) tail[(size - at) / 2].pair &= 15;
  widen(tail, at);
}

/// Elements [0, size) times a factor, as elements of To; zeros up to a whole vector.
template <class V, class T, class To>
void widen_run(const T* codes, int64_t size, float factor, To* to) {
  const typename V::F f = V::set1(factor);
  int64_t i = 0;
  for (; i + V::kLanes <= size; i += V::kLanes) V::store(to + i, V::mul(V::load(codes + i / kPacked<T>), f));
  if (i == size) return;
  T tail[V::kLanes] = {};
  for (int64_t j = i; j < size; j += kPacked<T>) tail[(j - i) / kPacked<T>] = codes[j / kPacked<T>];
  V::store(to + i, V::mul(V::load(tail), f));
}

/// Asks for `bytes` from there on: processors' own requests are slow to find the rows of a block.
TILEWISE_INLINE void request(const void* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at, 0, 2);
}

/// Elements [depth, depth + size) of a quantised row, at most kWidened, as units; `row` counts scales. Returns what
/// they lack: the factor of them all. `scales` end where the elements do: what lies behind is never read.
template <class C, class T>
float widen_row(const T* row_data, const GemmScales& scales, int64_t row, int64_t depth, int64_t size,
                RealOf<C>* units) {
  const T* codes = row_data + depth / kPacked<T>;
  if (has_short_blocks(scales)) {
    float factors[kWidenedBlocks + 2] = {};
    const float common = short_factors<C>(scales, row, depth, size, factors);
    widen_scaled<C>(codes, size, factors, scales.block_depth, units);
    return common;
  }
  if constexpr (kPacked<T> == 1) pack_row<C>(codes, size, units);
  return scale_at(scales, row, depth);
}

}  // namespace tilewise::backends::cpu
