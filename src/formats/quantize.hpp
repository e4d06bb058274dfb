// quantize() and dequantize() one number after the other, as docs/semantics.md fixes them: the reference of whatever
// does it faster. Tensors fit each other, as operations/quantize checks.
#pragma once

#include <array>
#include <cstdint>

#include "tilewise/block_format.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::formats {

/// A quantised tensor of the numbers' rank, which is 1 or more: any strides with elements' columns contiguous. Of
/// leading dimensions each index is a tensor of its own.
struct Quantized {
  TensorView elements;  ///< the numbers' shape
  TensorView scales;    ///< scales_shape()
  TensorView global;    ///< f32, the leading dimensions; undefined where the format has none
};

/// How many blocks there are along each dimension of numbers of such a shape.
[[nodiscard]] std::array<std::int64_t, kMaxRank> scales_shape(const BlockFormat& format,
                                                              const std::array<std::int64_t, kMaxRank>& shape,
                                                              int rank);

/// Writes all of `out`. x is f32, bf16 or f16. power_of_two, of fp8 without the mx blocks of 32: each scale is the
/// least power of two that is not smaller; scales in fp8_e8m0 of those blocks without it follow OCP MX. A block with a
/// NaN reads NaN throughout where elements cannot be one; its elements are 0 then. The half byte behind a packed row of
/// odd length is 0.
void quantize(const TensorView& x, const BlockFormat& format, const Quantized& out, bool power_of_two = false);

/// out is f32, bf16 or f16: the exact product rounded to f32, then to out's dtype.
void dequantize(const Quantized& x, const BlockFormat& format, const TensorView& out);

}  // namespace tilewise::formats
