// Rows of quantised tensors over threads, their runs to an instruction set's kernels.
#include "backends/cpu/formats/quantize.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>

#include "core/ceil_div.hpp"
#include "core/parallel.hpp"
#include "formats/element.hpp"
#include "formats/scales.hpp"

namespace tilewise::backends::cpu {
namespace {

using formats::Quantized;

NumberIndex number_index(DType dtype) {
  return dtype == DType::f32 ? kNumbersF32 : dtype == DType::bf16 ? kNumbersBf16 : kNumbersF16;
}

/// Numbers, elements and scales, row by row. Runs are those of a row that share a scale.
class Rows {
 public:
  Rows(const BlockFormat& format, const TensorView& numbers, const Quantized& quantized)
      : format_(format), numbers_(numbers), quantized_(quantized), last_(static_cast<std::size_t>(numbers.rank - 1)) {
    columns_ = numbers.shape[last_];
    run_ = format.block_columns == BlockFormat::kAll ? std::max<std::int64_t>(columns_, 1) : format.block_columns;
    if (last_ > 0) rows_ = numbers.shape[last_ - 1];
    for (std::size_t a = 0; a + 1 < last_; ++a) parts_ *= numbers.shape[a];
  }

  /// Tensors of their own, by the leading dimensions, and rows of one.
  [[nodiscard]] std::int64_t parts() const { return parts_; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t columns() const { return columns_; }
  [[nodiscard]] std::int64_t runs() const { return core::ceil_div(columns_, run_); }
  [[nodiscard]] std::int64_t run_size(std::int64_t run) const { return std::min(run_, columns_ - run * run_); }

  struct Row {
    std::byte* numbers;
    std::uint8_t* elements;
    std::int64_t scales;  // offset of its first one
  };
  /// Row `index` of all of them.
  [[nodiscard]] Row row(std::int64_t index) const {
    std::int64_t number = 0, element = 0, scale = 0;
    for (std::size_t a = last_; a-- > 0;) {
      const std::int64_t position = index % numbers_.shape[a];
      index /= numbers_.shape[a];
      number += position * numbers_.strides[a];
      element += position * quantized_.elements.strides[a];
      scale += (a + 1 < last_ ? position : block_of(position)) * quantized_.scales.strides[a];
    }
    return {static_cast<std::byte*>(numbers_.data) + number * static_cast<std::int64_t>(size_of(numbers_.dtype)),
            static_cast<std::uint8_t*>(quantized_.elements.data) + bytes(element), scale};
  }
  [[nodiscard]] std::byte* numbers(const Row& row, std::int64_t run) const {
    return row.numbers + run * run_ * static_cast<std::int64_t>(size_of(numbers_.dtype));
  }
  [[nodiscard]] std::uint8_t* elements(const Row& row, std::int64_t run) const {
    return row.elements + bytes(run * run_);
  }
  [[nodiscard]] std::int64_t scale(const Row& row, std::int64_t run) const {
    return row.scales + run * quantized_.scales.strides[last_];
  }
  /// The factor of a part.
  [[nodiscard]] float& global(std::int64_t part) const {
    const TensorView& view = quantized_.global;
    std::int64_t offset = 0;
    for (std::size_t a = last_; a-- > 1; part /= numbers_.shape[a - 1])
      offset += part % numbers_.shape[a - 1] * view.strides[a - 1];
    return static_cast<float*>(view.data)[offset];
  }

 private:
  [[nodiscard]] std::int64_t block_of(std::int64_t row) const {
    return format_.block_rows == BlockFormat::kAll ? 0 : row / format_.block_rows;
  }
  [[nodiscard]] std::int64_t bytes(std::int64_t elements) const {
    return elements * static_cast<std::int64_t>(bits_of(format_.element)) / 8;
  }

  const BlockFormat& format_;
  const TensorView& numbers_;
  const Quantized& quantized_;
  std::size_t last_;
  std::int64_t columns_ = 0, run_ = 1, rows_ = 1, parts_ = 1;
};

/// Of numbers that are not negative, whose order does not matter.
void raise_to(float& most, float value) {
  const std::atomic_ref<float> shared(most);
  float seen = shared.load(std::memory_order_relaxed);
  while (seen < value && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

/// One quantize() of a tensor with rows and columns. What a whole part has in common is gathered where its result will
/// stand: the greatest magnitude first, then what follows from it.
class Quantizer {
 public:
  Quantizer(const FormatKernels& kernels, const TensorView& x, const BlockFormat& format, const Quantized& out,
            bool power_of_two)
      : format_(format), rule_(formats::rule_of(format, power_of_two)), out_(out), rows_(format, x, out) {
    const NumberIndex index = number_index(x.dtype);
    extremes_ = kernels.extremes[index];
    encode_ = format.element == DType::fp4_e2m1 ? kernels.encode_e2m1[index] : kernels.encode_e4m3[index];
  }

  void run() {
    const bool whole = format_.block_rows == BlockFormat::kAll;
    if (whole || format_.global) see_parts();
    // Blocks of several rows are one task.
    const std::int64_t rows = whole ? 1 : format_.block_rows, blocks = core::ceil_div(rows_.rows(), rows);
    core::parallel_for(rows_.parts() * blocks, [&](std::int64_t task, int) {
      const std::int64_t part = task / blocks, first = task % blocks * rows;
      const RowRange range{part * rows_.rows() + first, std::min(rows, rows_.rows() - first)};
      for (std::int64_t run = 0; run < rows_.runs(); ++run)
        whole ? encode(range, run, of_part(part)) : quantize_block(part, range, run);
    });
  }

 private:
  struct RowRange {
    std::int64_t first, count;
  };

  [[nodiscard]] float& of_part(std::int64_t part) const {
    if (format_.global) return rows_.global(part);
    return static_cast<float*>(out_.scales.data)[rows_.row(part * rows_.rows()).scales];
  }

  void see_parts() {
    for (std::int64_t part = 0; part < rows_.parts(); ++part) of_part(part) = 0.0f;
    core::parallel_for(rows_.parts() * rows_.rows(), [this](std::int64_t index, int) {
      raise_to(of_part(index / rows_.rows()), extremes_(rows_.row(index).numbers, rows_.columns()).amax);
    });
    core::parallel_for(rows_.parts(), [this](std::int64_t part, int) {
      float& result = of_part(part);
      result = format_.global ? device::global_scale(result)
                              : device::scale_value(rule_.scale_type, device::scale_bits(rule_, result, false, 1.0f));
    });
  }

  void quantize_block(std::int64_t part, const RowRange& range, std::int64_t run) const {
    const RunExtremes found = extremes_of(range, run);
    const float global = format_.global ? rows_.global(part) : 1.0f;
    const std::uint32_t bits = device::scale_bits(rule_, found.amax, found.nan, global);
    formats::store_scale(out_.scales, rows_.scale(rows_.row(range.first), run), bits);
    const float scale = device::scale_value(rule_.scale_type, bits);
    encode(range, run, format_.global ? scale * global : scale);
  }

  [[nodiscard]] RunExtremes extremes_of(const RowRange& range, std::int64_t run) const {
    RunExtremes all{0.0f, false};
    for (std::int64_t index = range.first; index < range.first + range.count; ++index) {
      const RunExtremes found = extremes_(rows_.numbers(rows_.row(index), run), rows_.run_size(run));
      all.amax = std::max(all.amax, found.amax);
      all.nan |= found.nan;
    }
    return all;
  }
  void encode(const RowRange& range, std::int64_t run, float divisor) const {
    for (std::int64_t index = range.first; index < range.first + range.count; ++index) {
      const Rows::Row row = rows_.row(index);
      encode_(rows_.numbers(row, run), rows_.run_size(run), divisor, rows_.elements(row, run));
    }
  }

  const BlockFormat& format_;
  device::BlockRule rule_;
  const Quantized& out_;
  Rows rows_;
  ExtremesFn extremes_;
  EncodeElementsFn encode_;
};

}  // namespace

const FormatKernels* format_kernels(Isa isa) {
  switch (isa) {
    case Isa::generic:
      return &kGenericFormats;
#if defined(__x86_64__)
    case Isa::avx2:
      return &kAvx2Formats;
    case Isa::avx512:
    case Isa::avx512_bf16:
    case Isa::amx_bf16:
      return &kAvx512Formats;
#elif defined(__aarch64__)
    case Isa::neon:
    case Isa::neon_bf16:
      return &kNeonFormats;
#endif
    default:
      return nullptr;
  }
}

void quantize(const FormatKernels& kernels, const TensorView& x, const BlockFormat& format, const Quantized& out,
              bool power_of_two) {
  if (x.numel() == 0) return formats::quantize(x, format, out, power_of_two);  // scales of nothing
  Quantizer(kernels, x, format, out, power_of_two).run();
}

void dequantize(const FormatKernels& kernels, const Quantized& x, const BlockFormat& format, const TensorView& out) {
  const Rows rows(format, out, x);
  const NumberIndex index = number_index(out.dtype);
  const DecodeElementsFn decode =
      format.element == DType::fp4_e2m1 ? kernels.decode_e2m1[index] : kernels.decode_e4m3[index];
  if (out.numel() == 0) return;
  core::parallel_for(rows.parts() * rows.rows(), [&](std::int64_t row_index, int) {
    const Rows::Row row = rows.row(row_index);
    const float global = format.global ? rows.global(row_index / rows.rows()) : 1.0f;
    for (std::int64_t run = 0; run < rows.runs(); ++run) {
      const double scale = formats::load_element(format.scale, x.scales.data, rows.scale(row, run));
      decode(rows.elements(row, run), rows.run_size(run), static_cast<float>(scale), global, rows.numbers(row, run));
    }
  });
}

}  // namespace tilewise::backends::cpu
