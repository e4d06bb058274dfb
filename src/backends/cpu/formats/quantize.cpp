// Rows of quantised tensors over threads, their runs to an instruction set's kernels.
#include "backends/cpu/formats/quantize.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "core/ceil_div.hpp"
#include "core/parallel.hpp"
#include "core/tensor_checks.hpp"
#include "formats/element.hpp"
#include "formats/scales.hpp"

namespace tilewise::backends::cpu {
namespace {

using formats::Quantized;

NumberIndex number_index(DType dtype) {
  return dtype == DType::f32 ? kNumbersF32 : dtype == DType::bf16 ? kNumbersBf16 : kNumbersF16;
}

/// Numbers, elements and scales of one tensor, row by row. Runs are those of a row that share a scale.
class Rows {
 public:
  Rows(const BlockFormat& format, const TensorView& numbers, const Quantized& quantized)
      : format_(format), numbers_(numbers), quantized_(quantized), last_(static_cast<std::size_t>(numbers.rank - 1)) {
    columns_ = numbers.shape[last_];
    run_ = format.block_columns == BlockFormat::kAll ? std::max<std::int64_t>(columns_, 1) : format.block_columns;
    blocks_ = formats::scales_shape(format, numbers.shape, numbers.rank);
    for (std::size_t a = 0; a < last_; ++a) rows_ *= numbers.shape[a];
  }

  /// Without columns there is nothing in a row.
  [[nodiscard]] std::int64_t rows() const { return columns_ == 0 ? 0 : rows_; }
  [[nodiscard]] std::int64_t runs() const { return core::ceil_div(columns_, run_); }
  [[nodiscard]] std::int64_t run_size(std::int64_t run) const { return std::min(run_, columns_ - run * run_); }

  struct Row {
    std::byte* numbers;
    std::uint8_t* elements;
    std::int64_t scales;  // offset of its first one
    std::int64_t block;   // index of that among all
  };
  [[nodiscard]] Row row(std::int64_t index) const {
    std::int64_t number = 0, element = 0, scale = 0, block = 0, step = blocks_[last_];
    for (std::size_t a = last_; a-- > 0;) {
      const std::int64_t position = index % numbers_.shape[a];
      index /= numbers_.shape[a];
      // As many blocks as rows: each has its own. One: it has all. Else as long as the format says.
      const std::int64_t at = blocks_[a] == numbers_.shape[a] ? position
                              : blocks_[a] == 1               ? 0
                                                              : position / format_.block_rows;
      number += position * numbers_.strides[a];
      element += position * quantized_.elements.strides[a];
      scale += at * quantized_.scales.strides[a];
      block += at * step;
      step *= blocks_[a];
    }
    return {static_cast<std::byte*>(numbers_.data) + number * static_cast<std::int64_t>(size_of(numbers_.dtype)),
            static_cast<std::uint8_t*>(quantized_.elements.data) + bytes(element), scale, block};
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

 private:
  [[nodiscard]] std::int64_t bytes(std::int64_t elements) const {
    return elements * static_cast<std::int64_t>(bits_of(format_.element)) / 8;
  }

  const BlockFormat& format_;
  const TensorView& numbers_;
  const Quantized& quantized_;
  std::size_t last_;
  std::int64_t columns_ = 0, run_ = 1, rows_ = 1;
  std::array<std::int64_t, kMaxRank> blocks_{};
};

/// A block's scale as it is stored, and what its numbers are divided by.
struct BlockScale {
  std::uint32_t bits;
  float divisor;
};

/// One quantize() whose arguments are checked.
class Quantizer {
 public:
  Quantizer(const FormatKernels& kernels, const TensorView& x, const BlockFormat& format, const Quantized& out,
            bool power_of_two)
      : format_(format), out_(out), rows_(format, x, out), power_of_two_(power_of_two) {
    const NumberIndex index = number_index(x.dtype);
    extremes_ = kernels.extremes[index];
    encode_ = format.element == DType::fp4_e2m1 ? kernels.encode_e2m1[index] : kernels.encode_e4m3[index];
  }

  void run() {
    if (format_.block_rows == 1 && !format_.global) {  // no other row has a part in a row's scales
      for_each_run([this](const Rows::Row& row, std::int64_t run, std::size_t /*index*/) {
        const BlockScale scale = scale_of(extremes_(rows_.numbers(row, run), rows_.run_size(run)));
        formats::store_scale(out_.scales, rows_.scale(row, run), scale.bits);
        encode(row, run, scale);
      });
      return;
    }
    std::vector<RunExtremes> found(static_cast<std::size_t>(rows_.rows() * rows_.runs()));
    for_each_run([&](const Rows::Row& row, std::int64_t run, std::size_t index) {
      found[index] = extremes_(rows_.numbers(row, run), rows_.run_size(run));
    });
    const std::vector<BlockScale> scales = joined(found);
    for_each_run([&](const Rows::Row& row, std::int64_t run, std::size_t /*index*/) {
      encode(row, run, scales[static_cast<std::size_t>(row.block + run)]);
    });
  }

 private:
  /// visit(row, run, index among all runs), rows side by side.
  template <typename Visit>
  void for_each_run(Visit&& visit) const {
    const std::int64_t runs = rows_.runs();
    core::parallel_for(rows_.rows(), [&](std::int64_t index, int) {
      const Rows::Row row = rows_.row(index);
      for (std::int64_t run = 0; run < runs; ++run) visit(row, run, static_cast<std::size_t>(index * runs + run));
    });
  }

  /// The scales of all blocks, of what their rows have found. Writes them, and the factor of the whole tensor.
  std::vector<BlockScale> joined(const std::vector<RunExtremes>& found) {
    std::vector<RunExtremes> blocks(static_cast<std::size_t>(out_.scales.numel()));
    float amax = 0.0f;
    each_in_order([&](const Rows::Row&, std::int64_t, std::size_t block, std::size_t index) {
      blocks[block].amax = std::max(blocks[block].amax, found[index].amax);
      blocks[block].nan |= found[index].nan;
      amax = std::max(amax, found[index].amax);
    });
    if (format_.global) *static_cast<float*>(out_.global.data) = global_ = formats::global_scale(amax);
    std::vector<BlockScale> scales;
    for (const RunExtremes& block : blocks) scales.push_back(scale_of(block));
    each_in_order([&](const Rows::Row& row, std::int64_t run, std::size_t block, std::size_t) {
      formats::store_scale(out_.scales, rows_.scale(row, run), scales[block].bits);
    });
    return scales;
  }
  template <typename Visit>
  void each_in_order(Visit&& visit) const {
    std::size_t next = 0;
    for (std::int64_t index = 0; index < rows_.rows(); ++index) {
      const Rows::Row row = rows_.row(index);
      for (std::int64_t run = 0; run < rows_.runs(); ++run)
        visit(row, run, static_cast<std::size_t>(row.block + run), next++);
    }
  }

  [[nodiscard]] BlockScale scale_of(const RunExtremes& found) const {
    const bool marked = found.nan && format_.element == DType::fp4_e2m1;
    const std::uint32_t bits =
        marked ? formats::nan_scale(format_.scale) : formats::scale_bits(format_, found.amax, global_, power_of_two_);
    const float scale = formats::scale_value(format_.scale, bits);
    return {bits, format_.global ? scale * global_ : scale};
  }
  void encode(const Rows::Row& row, std::int64_t run, const BlockScale& scale) const {
    encode_(rows_.numbers(row, run), rows_.run_size(run), scale.divisor, rows_.elements(row, run));
  }

  const BlockFormat& format_;
  const Quantized& out_;
  Rows rows_;
  bool power_of_two_;
  float global_ = 1.0f;
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
  formats::check_quantize(x, format, out, power_of_two);
  core::check_contiguous_last(x, "x");
  if (x.numel() == 0) return formats::quantize(x, format, out, power_of_two);  // scales of nothing
  Quantizer(kernels, x, format, out, power_of_two).run();
}

void dequantize(const FormatKernels& kernels, const Quantized& x, const BlockFormat& format, const TensorView& out) {
  formats::check_dequantize(x, format, out);
  core::check_contiguous_last(out, "out", core::Access::write);
  const Rows rows(format, out, x);
  const NumberIndex index = number_index(out.dtype);
  const DecodeElementsFn decode =
      format.element == DType::fp4_e2m1 ? kernels.decode_e2m1[index] : kernels.decode_e4m3[index];
  const float global = format.global ? *static_cast<const float*>(x.global.data) : 1.0f;
  core::parallel_for(rows.rows(), [&](std::int64_t row_index, int) {
    const Rows::Row row = rows.row(row_index);
    for (std::int64_t run = 0; run < rows.runs(); ++run) {
      const double scale = formats::load_element(format.scale, x.scales.data, rows.scale(row, run));
      decode(rows.elements(row, run), rows.run_size(run), static_cast<float>(scale), global, rows.numbers(row, run));
    }
  });
}

}  // namespace tilewise::backends::cpu
