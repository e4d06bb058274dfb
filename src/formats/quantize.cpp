// The reference of quantised formats.
#include "formats/quantize.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/message.hpp"
#include "core/tensor_checks.hpp"
#include "formats/element.hpp"
#include "formats/scales.hpp"

namespace tilewise::formats {
namespace {

using Extents = std::array<std::int64_t, kMaxRank>;

/// Elements of one block along an axis.
std::int64_t block_along(const BlockFormat& format, int axis, int rank) {
  if (axis == rank - 1) return format.block_columns;
  if (axis == rank - 2) return format.block_rows;
  return format.block_rows == BlockFormat::kAll ? BlockFormat::kAll : 1;
}

/// Where numbers, their elements and their scales lie.
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

void check_same_shape(const TensorView& view, std::string_view name, const Extents& shape, int rank) {
  core::Shape expected;
  expected.rank = rank;
  for (int axis = 0; axis < rank; ++axis) {
    const auto a = static_cast<std::size_t>(axis);
    expected.dims[a] = {axis == rank - 1 ? "columns" : axis == rank - 2 ? "rows" : "leading", shape[a]};
  }
  core::check_shape(view, name, expected);
}

void check(const TensorView& numbers, std::string_view name, const BlockFormat& format, const Quantized& quantized) {
  if (to_string(format) == "unknown" || !format.defined()) {
    core::invalid_argument("format: must be one that has a name (got ", to_string(format), ")");
  }
  core::check_view(numbers, name, {}, name);
  if (numbers.dtype != DType::f32 && numbers.dtype != DType::bf16 && numbers.dtype != DType::f16) {
    core::invalid_type(name, ": dtype must be f32, bf16 or f16 (got ", to_string(numbers.dtype), ")");
  }
  if (numbers.rank < 1) core::invalid_argument(name, ": rank must be >= 1 (got 0)");
  core::check_view(quantized.elements, "elements", {}, name);
  core::check_dtype(quantized.elements, "elements", format.element);
  check_same_shape(quantized.elements, "elements", numbers.shape, numbers.rank);
  core::check_contiguous_last(quantized.elements, "elements", core::Access::write);
  core::check_view(quantized.scales, "scales", {}, name);
  core::check_dtype(quantized.scales, "scales", format.scale);
  check_same_shape(quantized.scales, "scales", scales_shape(format, numbers.shape, numbers.rank), numbers.rank);
  if (format.global != quantized.global.defined()) {
    core::invalid_argument("global: must be given with nvfp4, and with it alone (format ", to_string(format), ")");
  }
  if (!format.global) return;
  core::check_view(quantized.global, "global", {}, name);
  core::check_dtype(quantized.global, "global", DType::f32);
  if (quantized.global.numel() != 1) {
    core::invalid_argument("global: must have one element (got ", quantized.global.numel(), ")");
  }
}

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
  if (packed.dtype != DType::fp4_e2m1 || packed.shape[last] % 2 == 0 || packed.numel() == 0) return;
  TensorView rests = packed;
  rests.shape[last] = 1;
  const Quantized itself{rests, {}, {}};
  Blocks({}, rests, itself).for_each([&](std::int64_t row, std::int64_t, std::size_t) {
    device::set_e2m1(static_cast<std::uint8_t*>(packed.data), row + packed.shape[last], 0);
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

void check_quantize(const TensorView& x, const BlockFormat& format, const Quantized& out, bool power_of_two) {
  check(x, "x", format, out);
  if (power_of_two && (format.element != DType::fp8_e4m3 || format == parse_block_format("mxfp8"))) {
    core::invalid_argument("power_of_two: must be false with ", to_string(format), ", whose scales are fixed");
  }
}

void check_dequantize(const Quantized& x, const BlockFormat& format, const TensorView& out) {
  check(out, "out", format, x);
}

void quantize(const TensorView& x, const BlockFormat& format, const Quantized& out, bool power_of_two) {
  check_quantize(x, format, out, power_of_two);
  const Blocks blocks(format, x, out);
  const Extremes extremes = extremes_of(x, blocks);
  float global = 1.0f;
  if (format.global) {
    float amax = 0.0f;
    for (const float each : extremes.amax) amax = std::max(amax, each);
    global = global_scale(amax);
    *static_cast<float*>(out.global.data) = global;
  }
  const bool marked = format.element == DType::fp4_e2m1;  // its NaN is in the scale
  std::vector<float> divisors(blocks.count());
  blocks.for_each_scale([&](std::int64_t offset, std::size_t block) {
    const std::uint32_t bits = marked && extremes.nan[block]
                                   ? nan_scale(format.scale)
                                   : scale_bits(format, extremes.amax[block], global, power_of_two);
    store_scale(out.scales, offset, bits);
    const float scale = scale_value(format.scale, bits);
    divisors[block] = format.global ? scale * global : scale;
  });
  blocks.for_each([&](std::int64_t number, std::int64_t element, std::size_t block) {
    const float quotient = static_cast<float>(load_element(x.dtype, x.data, number)) / divisors[block];
    store_element(format.element, out.elements.data, element, quotient);
  });
  clear_rest(out.elements);
}

void dequantize(const Quantized& x, const BlockFormat& format, const TensorView& out) {
  check_dequantize(x, format, out);
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

}  // namespace tilewise::formats
