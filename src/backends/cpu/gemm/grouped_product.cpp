// Tasks are (group, block of rows, block of results), the groups with most rows first. Groups of few rows stream their
// weights; the others pack them.
#include "backends/cpu/gemm/grouped_product.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "backends/cpu/rows.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "core/parallel.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::cpu {
namespace {

using core::ceil_div;

constexpr std::int64_t kVectorReals = 16;  // of the widest vectors

std::int64_t round_up_to(std::int64_t value, std::int64_t multiple) { return ceil_div(value, multiple) * multiple; }

/// `elements` further, which are whole bytes.
void* advance_elements(const void* from, std::int64_t elements, DType dtype) {
  return advance(const_cast<void*>(from), elements * static_cast<std::int64_t>(bits_of(dtype)) / 8, 1);
}

/// Whether elements and scales are multiplied before any sum.
bool is_short(const operations::BlockScales& s) {
  return (s.dtype == DType::fp8_e8m0 && s.block_columns == 32) || s.dtype == DType::fp8_e4m3;
}

/// Those of one expert.
GemmScales scales_from(const operations::BlockScales& s, std::int64_t expert, std::int64_t depth) {
  if (s.data == nullptr) return {nullptr, GemmElement::f32, 1, 1, 0, 0};
  const bool whole = !is_short(s) && s.block_columns >= depth;
  return {advance_elements(s.data, expert * s.expert_stride, s.dtype),        gemm_element(s.dtype), s.block_rows,
          whole ? std::numeric_limits<std::int64_t>::max() : s.block_columns, s.row_stride,          s.column_stride};
}

class Tasks {
 public:
  Tasks(const GroupedProduct& p, void* workspace)
      : p_(p),
        kernel_(*gemm_kernel(*p.kernels, p.dtype, p.w.dtype)),
        sum_(sum_dtype(p.dtype)),
        runs_(p.layout == device::GateLayout::none ? 1 : 2),
        results_(p.w.rows / runs_),
        order_(static_cast<std::int64_t*>(workspace)),
        first_(order_ + p.w.num_experts) {
    std::iota(order_, order_ + p.w.num_experts, std::int64_t{0});
    std::sort(order_, order_ + p.w.num_experts, [&](std::int64_t a, std::int64_t b) {
      return rows_of(a) != rows_of(b) ? rows_of(a) > rows_of(b) : a < b;
    });
    choose_blocks();
    first_[0] = 0;
    for (std::int64_t i = 0; i < p.w.num_experts; ++i) first_[i + 1] = first_[i] + tasks_of(order_[i]);
  }

  void run() {
    const std::int64_t outputs = runs_ * std::max(packed_, streamed_), most_rows = rows_of(order_[0]);
    const bool quantized = is_quantized(p_.w.dtype);
    const auto scratch = [&](std::int64_t rows, bool streamed) {
      const std::int64_t block = runs_ * (streamed ? streamed_ : packed_);
      return kernel_.scratch({rows, block, p_.w.columns, streamed, quantized, is_paired()});
    };
    const std::size_t bytes = std::max(scratch(std::min(most_rows, kGemmRows), false),
                                       scratch(std::min(most_rows, kernel_.stream_rows), true));
    const std::size_t bias_bytes =
        p_.bias.data == nullptr ? 0 : static_cast<std::size_t>(2 * bias_reals(outputs)) * size_of(sum_);
    core::parallel_for(first_[p_.w.num_experts], workers_, [&](std::int64_t task, int) {
      if (core::abandoned()) return;
      auto* memory = static_cast<std::byte*>(thread_scratch(bytes + bias_bytes));
      run_task(task, memory + bytes, memory);
    });
  }

 private:
  [[nodiscard]] std::int64_t rows_of(std::int64_t group) const { return p_.groups[group + 1] - p_.groups[group]; }
  [[nodiscard]] bool is_streamed(std::int64_t rows) const {
    return rows <= kernel_.stream_rows && !p_.batch_invariant && (!is_quantized(p_.w.dtype) || is_by_depth());
  }
  [[nodiscard]] bool is_by_depth() const {
    return p_.w.column_stride == 1 || (p_.w.columns <= 1 && p_.w.dtype != DType::fp4_e2m1);
  }
  /// Contiguous outputs of gates and ups that alternate stay together: one run of pairs.
  [[nodiscard]] bool is_paired() const { return p_.layout == device::GateLayout::interleaved && !is_by_depth(); }
  [[nodiscard]] std::int64_t tasks_of(std::int64_t group) const {
    const std::int64_t rows = rows_of(group);
    return ceil_div(rows, kGemmRows) * ceil_div(results_, is_streamed(rows) ? streamed_ : packed_);
  }
  [[nodiscard]] static std::int64_t bias_reals(std::int64_t outputs) { return round_up_to(outputs, kVectorReals); }

  /// Results of a task: as many as caches like, and few enough for all threads to have several.
  void choose_blocks() {
    // Streams of weights are long: what starts and ends a task takes a microsecond, in which memory waits.
    constexpr double kLeastBytes = 256 * 1024, kMostBytes = 1024 * 1024, kStreamsAWorker = 16;
    constexpr std::int64_t kStreamedOutputs = 1024, kPackedOutputs = 256, kStep = 8, kTasksAWorker = 4;
    const auto bits = static_cast<std::int64_t>(bits_of(p_.w.dtype));
    double flops = 0, bytes = 0;
    std::int64_t blocks = 0;
    for (std::int64_t group = 0; group < p_.w.num_experts && rows_of(order_[group]) > 0; ++group) {
      const std::int64_t rows = rows_of(order_[group]);
      flops += 2.0 * static_cast<double>(rows) * static_cast<double>(p_.w.rows * p_.w.columns);
      bytes += static_cast<double>(p_.w.rows * p_.w.columns * bits) / 8;
      blocks += ceil_div(rows, kGemmRows);
    }
    workers_ = workers_for(std::max(flops, 4 * bytes));
    const std::int64_t panel = kernel_.panel;
    const std::int64_t fair =
        std::max<std::int64_t>(ceil_div(blocks * results_, kTasksAWorker * std::max(workers_, 1)), 1);
    const std::int64_t row_bytes = std::max<std::int64_t>(runs_ * p_.w.columns * bits / 8, 1);
    const double stream_bytes = std::clamp(bytes / (kStreamsAWorker * std::max(workers_, 1)), kLeastBytes, kMostBytes);
    const auto stream_rows = static_cast<std::int64_t>(stream_bytes) / row_bytes;
    streamed_ = round_up_to(std::min({std::max(stream_rows, kStep), kStreamedOutputs / runs_, fair}), kStep);
    packed_ = std::min(kPackedOutputs / runs_, round_up_to(fair, panel));
  }

  void run_task(std::int64_t task, void* bias, void* scratch) const {
    const std::int64_t place = std::upper_bound(first_, first_ + p_.w.num_experts + 1, task) - first_ - 1;
    const std::int64_t group = order_[place], rows = rows_of(group), within = task - first_[place];
    const std::int64_t block = is_streamed(rows) ? streamed_ : packed_, blocks = ceil_div(results_, block);
    // Equal parts, so that none is of a few rows.
    const std::int64_t row_blocks = ceil_div(rows, kGemmRows), part = within / blocks;
    const std::int64_t row = rows * part / row_blocks, begin = within % blocks * block;
    const std::int64_t first = p_.groups[group] + row;
    GemmTask t{};
    t.x = p_.x;
    t.x_element = gemm_element(p_.dtype);
    t.x_stride = p_.x_stride;
    operations::BlockScales x_scales = p_.x_scales;
    if (p_.row_index != nullptr) {
      t.row_index = p_.row_index + first;
    } else {
      t.x = advance_elements(p_.x, first * p_.x_stride, p_.dtype);
      x_scales.expert_stride = x_scales.block_rows == 1 ? x_scales.row_stride : 0;
    }
    t.x_scales = scales_from(x_scales, p_.row_index != nullptr ? 0 : first, p_.w.columns);
    t.rows = rows * (part + 1) / row_blocks - row;
    t.depth = p_.w.columns;
    t.streamed = is_streamed(rows);
    t.w = weights_of(group, begin, std::min(block, results_ - begin), bias);
    t.activation = p_.activation;
    t.gated = runs_ == 2;
    t.factor_on_product = p_.factor_on_product;
    if (p_.factor != nullptr) t.factor = advance(const_cast<void*>(p_.factor), first, size_of(sum_));
    t.out = advance(p_.out, first * p_.out_stride + begin, size_of(p_.out_dtype));
    t.out_stride = p_.out_stride;
    t.out_element = gemm_element(p_.out_dtype);
    kernel_.run(t, scratch);
  }

  [[nodiscard]] GemmWeights weights_of(std::int64_t group, std::int64_t begin, std::int64_t count, void* bias) const {
    const bool alternate = p_.layout == device::GateLayout::interleaved;
    const bool by_depth = is_by_depth();
    GemmWeights w{};
    w.depth_stride = by_depth ? 1 : p_.w.column_stride;
    const bool pairs = is_paired();
    w.num_runs = pairs ? 1 : runs_;
    w.outputs = pairs ? 2 * count : count;
    const std::int64_t step = alternate && !pairs ? 2 : 1;  // from output to output of a run
    w.output_stride = step * p_.w.row_stride;
    w.element = gemm_element(p_.w.dtype);
    w.scales = scales_from(p_.w.scales, group, p_.w.columns);
    w.row_step = step;
    const operations::Vector& factors = p_.w.expert_scales;
    w.factor = factors.data == nullptr ? 1.0f : static_cast<const float*>(factors.data)[group * factors.stride];
    for (std::int32_t i = 0; i < w.num_runs; ++i) {
      const std::int64_t row = p_.first_output + (alternate ? 2 * begin + i : i * results_ + begin);
      w.runs[i].data = advance_elements(p_.w.data, group * p_.w.expert_stride + row * p_.w.row_stride, p_.w.dtype);
      w.runs[i].row = row;
      if (p_.bias.data == nullptr) continue;
      w.runs[i].bias = advance(bias, i * bias_reals(w.outputs), size_of(sum_));
      read_bias(group, row, step, w.outputs, const_cast<void*>(w.runs[i].bias));
    }
    return w;
  }

  /// As Reals, zeros behind them.
  void read_bias(std::int64_t group, std::int64_t row, std::int64_t step, std::int64_t count, void* to) const {
    for (std::int64_t i = 0; i < bias_reals(count); ++i) {
      const std::int64_t at = group * p_.bias.expert_stride + (row + i * step) * p_.bias.stride;
      const double value = i < count ? operations::load_element(p_.bias.dtype, p_.bias.data, at) : 0.0;
      operations::store_element(sum_, to, i, value);
    }
  }

  const GroupedProduct& p_;
  const GemmKernel& kernel_;
  DType sum_;  ///< what products are summed up in
  std::int32_t runs_;
  std::int64_t results_;
  std::int64_t* order_;  ///< groups, those with most rows first
  std::int64_t* first_;  ///< tasks before each of them
  std::int64_t packed_ = 0, streamed_ = 0;
  int workers_ = 1;
};

}  // namespace

const GemmKernels& gemm_kernels_of(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx2:
      return kAvx2Gemm;
    case Isa::avx512:
      return kAvx512Gemm;
    case Isa::avx512_bf16:
      return kAvx512Bf16Gemm;
    case Isa::amx_bf16:
      return kAmxBf16Gemm;
#elif defined(__aarch64__)
    case Isa::neon:
      return kNeonGemm;
    case Isa::neon_bf16:
      return kNeonBf16Gemm;
#endif
    default:
      return kGenericGemm;
  }
}

const GemmKernel* gemm_kernel(const GemmKernels& kernels, DType x, DType w) {
  const auto found = [](const GemmKernel& kernel) { return kernel.run == nullptr ? nullptr : &kernel; };
  if (x == DType::f64 || w == DType::f64) return x == w ? found(kernels.f64) : nullptr;
  if (is_quantized(x) && !is_quantized(w)) return nullptr;
  const auto is_pairs = [](DType dtype) { return dtype == DType::bf16 || is_quantized(dtype); };
  return kernels.bf16.run != nullptr && is_pairs(x) && is_pairs(w) ? &kernels.bf16 : found(kernels.f32);
}

std::size_t grouped_product_workspace(std::int64_t num_groups) {
  return static_cast<std::size_t>(2 * num_groups + 1) * sizeof(std::int64_t);
}

void run_grouped_product(const GroupedProduct& p, void* workspace) {
  if (p.w.num_experts == 0 || p.w.rows == 0 || p.groups[0] == p.groups[p.w.num_experts]) return;
  Tasks(p, workspace).run();
}

namespace {

void check_contiguous(const char* name, const operations::Matrix& m) {
  if (m.column_stride != 1 && m.columns > 1)
    core::invalid_argument(name, ": the stride of the last dimension must be 1 (got ", m.column_stride, ")");
}

}  // namespace

void check_rows(const char* name, const operations::Matrix& m) {
  if (!operations::is_element_type(m.dtype) && m.dtype != DType::fp8_e4m3)
    core::invalid_type(name, ": dtype must be f32, bf16, f16, f64 or fp8_e4m3 (got ", to_string(m.dtype), ")");
  check_contiguous(name, m);
}

void check_results(const char* name, const operations::Matrix& m, DType dtype) {
  const bool fits =
      dtype == DType::f64 ? m.dtype == DType::f64 : operations::is_element_type(m.dtype) && m.dtype != DType::f64;
  if (!fits)
    core::invalid_type(name, ": dtype must be ", dtype == DType::f64 ? "f64" : "f32, bf16 or f16", " of x in ",
                       to_string(dtype), " (got ", to_string(m.dtype), ")");
  check_contiguous(name, m);
}

void check_scales(const char* name, const operations::BlockScales& scales, DType dtype, std::int64_t depth) {
  if (!is_quantized(dtype)) {
    if (scales.data != nullptr)
      core::invalid_argument(name, ": must have no scales beside ", to_string(dtype), " (got some)");
    return;
  }
  const bool fp4 = dtype == DType::fp4_e2m1, whole = scales.block_columns >= depth;
  if (scales.data == nullptr) {
    if (fp4) core::invalid_argument(name, ": must have scales beside fp4_e2m1 (got none)");
    return;
  }
  if (scales.block_rows < 1 || scales.block_columns < 1)
    core::invalid_argument(name, ": blocks of scales must have 1 or more rows and columns (got ", scales.block_rows,
                           " and ", scales.block_columns, ")");
  const bool mx = scales.dtype == DType::fp8_e8m0 && scales.block_columns == 32;
  const bool nv = fp4 && scales.dtype == DType::fp8_e4m3 && scales.block_columns == 16;
  const bool coarse = (scales.dtype == DType::f32 || scales.dtype == DType::fp8_e8m0) && !fp4 &&
                      (whole || scales.block_columns % 128 == 0);
  if (!mx && !nv && !coarse)
    core::invalid_argument(name, ": scales beside ", to_string(dtype), " must be ",
                           fp4 ? "fp8_e8m0 of 32 columns or fp8_e4m3 of 16"
                               : "fp8_e8m0 of 32 columns, or f32 or fp8_e8m0 of all or a multiple of 128",
                           " (got ", to_string(scales.dtype), " of ", scales.block_columns, ")");
}

void check_weights(const char* name, const operations::ExpertMatrices& w, DType dtype) {
  if (w.dtype != dtype && (!is_quantized(w.dtype) || dtype == DType::f64))
    core::invalid_type(name, ": dtype must be ", is_quantized(dtype) ? "" : to_string(dtype),
                       dtype == DType::f64   ? ""
                       : is_quantized(dtype) ? "fp8_e4m3 or fp4_e2m1"
                                             : ", fp8_e4m3 or fp4_e2m1",
                       " (got ", to_string(w.dtype), ")");
  check_scales(name, w.scales, w.dtype, w.columns);
  if (w.expert_scales.data != nullptr && (!is_quantized(w.dtype) || w.expert_scales.dtype != DType::f32))
    core::invalid_argument(name, ": experts' scales must be f32, and of quantised weights (got ",
                           to_string(w.expert_scales.dtype), " beside ", to_string(w.dtype), ")");
  const bool by_depth = w.column_stride == 1 || w.columns <= 1, by_output = w.row_stride == 1 || w.rows <= 1;
  if (!by_depth && !by_output)
    core::invalid_argument(name, ": one of the last two dimensions must have stride 1 (got strides ", w.row_stride,
                           " and ", w.column_stride, ")");
  if ((w.dtype == DType::fp4_e2m1 && w.column_stride != 1) ||
      (!by_depth && w.scales.data != nullptr && is_short(w.scales)))
    core::invalid_argument(name, ": the last dimension must have stride 1 where its blocks are short (got ",
                           w.column_stride, ")");
  if (w.dtype == DType::fp4_e2m1 &&
      ((w.row_stride % 2 != 0 && w.rows > 1) || (w.expert_stride % 2 != 0 && w.num_experts > 1)))
    core::invalid_argument(name, ": strides of fp4_e2m1 must be even (got ", w.expert_stride, " and ", w.row_stride,
                           ")");
}

void check_kernel(const GemmKernels& kernels, DType x, DType w) {
  if (gemm_kernel(kernels, x, w) == nullptr)
    core::invalid_type("w: this instruction set multiplies no rows in ", to_string(x), " by weights in ", to_string(w));
}

}  // namespace tilewise::backends::cpu
