// The reference of quantised formats.
#include "formats/quantize.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "core/parallel.hpp"
#include "formats/element.hpp"
#include "formats/scales.hpp"

namespace tilewise::formats {
namespace {

using Extents = std::array<std::int64_t, kMaxRank>;

/// Dimensions before the matrix, of which each index is a tensor of its own.
std::size_t leading_of(const TensorView& numbers) { return static_cast<std::size_t>(std::max(numbers.rank - 2, 0)); }
std::int64_t parts_of(const TensorView& numbers) {
  std::int64_t parts = 1;
  for (std::size_t a = 0; a < leading_of(numbers); ++a) parts *= numbers.shape[a];
  return parts;
}

/// One of the tensors that `view` holds along its first dimensions.
TensorView part_of(const TensorView& view, std::size_t leading, std::int64_t part) {
  if (!view.defined()) return view;
  TensorView matrix = view;
  std::int64_t offset = 0;
  for (std::size_t a = leading; a-- > 0; part /= view.shape[a]) offset += part % view.shape[a] * view.strides[a];
  if (view.data != nullptr)
    matrix.data = static_cast<std::byte*>(view.data) + offset * static_cast<std::int64_t>(bits_of(view.dtype)) / 8;
  matrix.rank = std::max(view.rank - static_cast<int>(leading), 0);
  for (std::size_t a = 0; a < static_cast<std::size_t>(matrix.rank); ++a) {
    matrix.shape[a] = view.shape[a + leading];
    matrix.strides[a] = view.strides[a + leading];
  }
  return matrix;
}
Quantized part_of(const Quantized& quantized, std::size_t leading, std::int64_t part) {
  return {part_of(quantized.elements, leading, part), part_of(quantized.scales, leading, part),
          part_of(quantized.global, leading, part)};
}

/// Elements of one block along an axis.
std::int64_t block_along(const BlockFormat& format, int axis, int rank) {
  if (axis == rank - 1) return format.block_columns;
  return axis == rank - 2 ? format.block_rows : 1;
}

/// Where numbers, their elements and their scales lie, of one matrix or row.
class Blocks {
 public:
  Blocks(const BlockFormat& format, const TensorView& numbers, const Quantized& quantized)
      : numbers_(numbers), quantized_(quantized) {
    const auto shape = scales_shape(format, numbers.shape, numbers.rank);
    for (int axis = numbers.rank - 1; axis >= 0; --axis) {
      const auto a = static_cast<std::size_t>(axis);
      const std::int64_t size = block_along(format, axis, numbers.rank);
      block_[a] = size == BlockFormat::kAll ? std::max<std::int64_t>(numbers.shape[a], 1) : size;
      step_[a] = count_;
      count_ *= shape[a];
    }
  }

  /// Of all tensors, in blocks.
  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(count_); }

  /// Calls visit(offset of the number, of its element, index of its block) in row-major order.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    if (numbers_.numel() == 0) return;
    Extents position{};
    for (;;) {
      std::int64_t number = 0, element = 0, block = 0;
      for (std::size_t a = 0; a < static_cast<std::size_t>(numbers_.rank); ++a) {
        number += position[a] * numbers_.strides[a];
        element += position[a] * quantized_.elements.strides[a];
        block += position[a] / block_[a] * step_[a];
      }
      visit(number, element, static_cast<std::size_t>(block));
      int axis = numbers_.rank - 1;
      for (; axis >= 0; --axis) {
        const auto a = static_cast<std::size_t>(axis);
        if (++position[a] < numbers_.shape[a]) break;
        position[a] = 0;
      }
      if (axis < 0) return;
    }
  }

  /// Calls visit(offset of the scale, index of its block).
  template <typename Visit>
  void for_each_scale(Visit&& visit) const {
    const TensorView& scales = quantized_.scales;
    for (std::size_t block = 0; block < count(); ++block) {
      std::int64_t rest = static_cast<std::int64_t>(block), offset = 0;
      for (std::size_t a = 0; a < static_cast<std::size_t>(scales.rank); ++a) {
        offset += rest / step_[a] * scales.strides[a];
        rest %= step_[a];
      }
      visit(offset, block);
    }
  }

 private:
  const TensorView& numbers_;
  const Quantized& quantized_;
  Extents block_{}, step_{};
  std::int64_t count_ = 1;
};

/// What one pass over the numbers finds.
struct Extremes {
  std::vector<float> amax;  // of each block, over its finite numbers
  std::vector<bool> nan;    // whether it has one
};

Extremes extremes_of(const TensorView& x, const Blocks& blocks) {
  Extremes found{std::vector<float>(blocks.count()), std::vector<bool>(blocks.count())};
  blocks.for_each([&](std::int64_t number, std::int64_t /*element*/, std::size_t block) {
    const auto value = static_cast<float>(load_element(x.dtype, x.data, number));
    if (std::isfinite(value)) found.amax[block] = std::max(found.amax[block], std::abs(value));
    if (std::isnan(value)) found.nan[block] = true;
  });
  return found;
}

/// The half byte behind each row of odd length.
void clear_rest(const TensorView& packed) {
  const auto last = static_cast<std::size_t>(packed.rank - 1);
  if (packed.dtype != DType::fp4_e2m1 || packed.shape[last] % 2 == 0) return;
  const std::int64_t rows = packed.rank == 1 ? 1 : packed.shape[0], stride = packed.rank == 1 ? 0 : packed.strides[0];
  for (std::int64_t row = 0; row < rows; ++row)
    device::set_e2m1(static_cast<std::uint8_t*>(packed.data), row * stride + packed.shape[last], 0);
}

void quantize_matrix(const TensorView& x, const BlockFormat& format, const Quantized& out, bool power_of_two) {
  const Blocks blocks(format, x, out);
  const Extremes extremes = extremes_of(x, blocks);
  float global = 1.0f;
  if (format.global) {
    float amax = 0.0f;
    for (const float each : extremes.amax) amax = std::max(amax, each);
    global = device::global_scale(amax);
    *static_cast<float*>(out.global.data) = global;
  }
  const device::BlockRule rule = rule_of(format, power_of_two);
  std::vector<float> divisors(blocks.count());
  blocks.for_each_scale([&](std::int64_t offset, std::size_t block) {
    const std::uint32_t bits = device::scale_bits(rule, extremes.amax[block], extremes.nan[block], global);
    store_scale(out.scales, offset, bits);
    const float scale = device::scale_value(rule.scale_type, bits);
    divisors[block] = format.global ? scale * global : scale;
  });
  blocks.for_each([&](std::int64_t number, std::int64_t element, std::size_t block) {
    const float quotient = static_cast<float>(load_element(x.dtype, x.data, number)) / divisors[block];
    store_element(format.element, out.elements.data, element, quotient);
  });
  clear_rest(out.elements);
}

void dequantize_matrix(const Quantized& x, const BlockFormat& format, const TensorView& out) {
  const Blocks blocks(format, out, x);
  const double global = format.global ? double{*static_cast<const float*>(x.global.data)} : 1.0;
  std::vector<double> scales(blocks.count());
  blocks.for_each_scale([&](std::int64_t offset, std::size_t block) {
    scales[block] = load_element(format.scale, x.scales.data, offset) * global;
  });
  blocks.for_each([&](std::int64_t number, std::int64_t element, std::size_t block) {
    const double value = load_element(format.element, x.elements.data, element) * scales[block];
    store_element(out.dtype, out.data, number, static_cast<float>(value));
  });
}

}  // namespace

std::array<std::int64_t, kMaxRank> scales_shape(const BlockFormat& format, const Extents& shape, int rank) {
  Extents blocks{};
  for (int axis = 0; axis < rank; ++axis) {
    const auto a = static_cast<std::size_t>(axis);
    const std::int64_t size = block_along(format, axis, rank);
    blocks[a] = size == BlockFormat::kAll ? 1 : shape[a] / size + (shape[a] % size != 0 ? 1 : 0);
  }
  return blocks;
}

// Tasks have the default floating-point mode.

void quantize(const TensorView& x, const BlockFormat& format, const Quantized& out, bool power_of_two) {
  const std::size_t leading = leading_of(x);
  core::parallel_for(parts_of(x), [&](std::int64_t part, int) {
    quantize_matrix(part_of(x, leading, part), format, part_of(out, leading, part), power_of_two);
  });
}

void dequantize(const Quantized& x, const BlockFormat& format, const TensorView& out) {
  const std::size_t leading = leading_of(out);
  core::parallel_for(parts_of(out), [&](std::int64_t part, int) {
    dequantize_matrix(part_of(x, leading, part), format, part_of(out, leading, part));
  });
}

}  // namespace tilewise::formats
