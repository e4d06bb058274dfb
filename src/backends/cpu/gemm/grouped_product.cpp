// Tasks are (group, block of rows, block of results), the groups with most rows first. Groups of few rows stream their
// weights; the others pack them.
#include "backends/cpu/gemm/grouped_product.hpp"

#include <algorithm>
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

class Tasks {
 public:
  Tasks(const GroupedProduct& p, void* workspace)
      : p_(p),
        element_(element_of(p.dtype)),
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
    const auto depth = p_.w.columns, outputs = runs_ * std::max(packed_, streamed_);
    const std::int64_t most_rows = rows_of(order_[0]), fewest = std::min(most_rows, p_.kernels->stream_rows[element_]);
    const GemmScratchFn scratch = p_.kernels->scratch[element_];
    const std::size_t bytes =
        std::max(scratch(std::min(most_rows, kGemmRows), outputs, depth, false), scratch(fewest, outputs, depth, true));
    const std::size_t bias_bytes =
        p_.bias.data == nullptr ? 0 : static_cast<std::size_t>(2 * bias_reals(outputs)) * real_size(element_);
    core::parallel_for(first_[p_.w.num_experts], workers_, [&](std::int64_t task, int) {
      if (core::abandoned()) return;
      auto* memory = static_cast<std::byte*>(thread_scratch(bytes + bias_bytes));
      run_task(task, memory + bytes, memory);
    });
  }

 private:
  [[nodiscard]] std::int64_t rows_of(std::int64_t group) const { return p_.groups[group + 1] - p_.groups[group]; }
  [[nodiscard]] bool is_streamed(std::int64_t rows) const {
    return rows <= p_.kernels->stream_rows[element_] && !p_.batch_invariant;
  }
  [[nodiscard]] std::int64_t tasks_of(std::int64_t group) const {
    const std::int64_t rows = rows_of(group);
    return ceil_div(rows, kGemmRows) * ceil_div(results_, is_streamed(rows) ? streamed_ : packed_);
  }
  [[nodiscard]] static std::int64_t bias_reals(std::int64_t outputs) { return round_up_to(outputs, kVectorReals); }

  /// Results of a task: as many as caches like, and few enough for all threads to have several.
  void choose_blocks() {
    constexpr std::int64_t kStreamBytes = 256 * 1024, kPackedOutputs = 256, kStep = 8, kTasksAWorker = 4;
    const auto size = static_cast<std::int64_t>(element_size(element_));
    double flops = 0, bytes = 0;
    std::int64_t blocks = 0;
    for (std::int64_t group = 0; group < p_.w.num_experts && rows_of(order_[group]) > 0; ++group) {
      const std::int64_t rows = rows_of(order_[group]);
      flops += 2.0 * static_cast<double>(rows) * static_cast<double>(p_.w.rows * p_.w.columns);
      bytes += static_cast<double>(p_.w.rows * p_.w.columns * size);
      blocks += ceil_div(rows, kGemmRows);
    }
    workers_ = workers_for(std::max(flops, 4 * bytes));
    const std::int64_t panel = p_.kernels->panel[element_];
    const std::int64_t fair =
        std::max<std::int64_t>(ceil_div(blocks * results_, kTasksAWorker * std::max(workers_, 1)), 1);
    const std::int64_t row_bytes = std::max<std::int64_t>(runs_ * p_.w.columns * size, 1);
    streamed_ = round_up_to(std::min(std::max(kStreamBytes / row_bytes, kStep), fair), kStep);
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
    t.x_stride = p_.x_stride;
    if (p_.row_index != nullptr)
      t.row_index = p_.row_index + first;
    else
      t.x = advance(const_cast<void*>(p_.x), first * p_.x_stride, element_size(element_));
    t.rows = rows * (part + 1) / row_blocks - row;
    t.depth = p_.w.columns;
    t.streamed = is_streamed(rows);
    t.w = weights_of(group, begin, std::min(block, results_ - begin), bias);
    t.activation = p_.activation;
    t.gated = runs_ == 2;
    t.factor_on_product = p_.factor_on_product;
    if (p_.factor != nullptr) t.factor = advance(const_cast<void*>(p_.factor), first, real_size(element_));
    t.out = advance(p_.out, first * p_.out_stride + begin, size_of(p_.out_dtype));
    t.out_stride = p_.out_stride;
    t.out_element = element_of(p_.out_dtype);
    p_.kernels->run[element_](t, scratch);
  }

  [[nodiscard]] GemmWeights weights_of(std::int64_t group, std::int64_t begin, std::int64_t count, void* bias) const {
    const bool alternate = p_.layout == device::GateLayout::interleaved;
    const bool by_depth = p_.w.column_stride == 1 || p_.w.columns <= 1;
    GemmWeights w{};
    w.depth_stride = by_depth ? 1 : p_.w.column_stride;
    // Contiguous outputs that alternate stay together: one run of pairs.
    const bool pairs = alternate && !by_depth;
    w.num_runs = pairs ? 1 : runs_;
    w.outputs = pairs ? 2 * count : count;
    const std::int64_t step = alternate && !pairs ? 2 : 1;  // from output to output of a run
    w.output_stride = step * p_.w.row_stride;
    for (std::int32_t i = 0; i < w.num_runs; ++i) {
      const std::int64_t row = alternate ? 2 * begin + i : i * results_ + begin;
      w.runs[i].data = advance(p_.w.data, group * p_.w.expert_stride + row * p_.w.row_stride, element_size(element_));
      if (p_.bias.data == nullptr) continue;
      w.runs[i].bias = advance(bias, i * bias_reals(w.outputs), real_size(element_));
      read_bias(group, row, step, w.outputs, const_cast<void*>(w.runs[i].bias));
    }
    return w;
  }

  /// As Reals, zeros behind them.
  void read_bias(std::int64_t group, std::int64_t row, std::int64_t step, std::int64_t count, void* to) const {
    for (std::int64_t i = 0; i < bias_reals(count); ++i) {
      const std::int64_t at = group * p_.bias.expert_stride + (row + i * step) * p_.bias.stride;
      const double value = i < count ? operations::load_element(p_.bias.dtype, p_.bias.data, at) : 0.0;
      operations::store_element(real_of(element_), to, i, value);
    }
  }

  const GroupedProduct& p_;
  ElementIndex element_;
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

std::size_t grouped_product_workspace(std::int64_t num_groups) {
  return static_cast<std::size_t>(2 * num_groups + 1) * sizeof(std::int64_t);
}

void run_grouped_product(const GroupedProduct& p, void* workspace) {
  if (p.w.num_experts == 0 || p.w.rows == 0 || p.groups[0] == p.groups[p.w.num_experts]) return;
  Tasks(p, workspace).run();
}

void check_rows(const char* name, const operations::Matrix& m, DType dtype) {
  if (m.dtype != dtype)
    core::invalid_type(name, ": dtype must be ", to_string(dtype), " (got ", to_string(m.dtype), ")");
  if (m.column_stride != 1 && m.columns > 1)
    core::invalid_argument(name, ": the stride of the last dimension must be 1 (got ", m.column_stride, ")");
}

void check_results(const char* name, const operations::Matrix& m, DType dtype) {
  const bool fits =
      dtype == DType::f64 ? m.dtype == DType::f64 : operations::is_element_type(m.dtype) && m.dtype != DType::f64;
  if (!fits)
    core::invalid_type(name, ": dtype must be ", dtype == DType::f64 ? "f64" : "f32, bf16 or f16", " of x in ",
                       to_string(dtype), " (got ", to_string(m.dtype), ")");
  check_rows(name, m, m.dtype);
}

void check_weights(const char* name, const operations::ExpertMatrices& w, DType dtype) {
  if (w.dtype != dtype)
    core::invalid_type(name, ": dtype must be ", to_string(dtype), " (got ", to_string(w.dtype), ")");
  if (w.scales.data != nullptr || w.expert_scales.data != nullptr)
    core::invalid_argument(name, ": must have no scales beside ", to_string(dtype), " (got some)");
  if (w.row_stride != 1 && w.rows > 1 && w.column_stride != 1 && w.columns > 1)
    core::invalid_argument(name, ": one of the last two dimensions must have stride 1 (got strides ", w.row_stride,
                           " and ", w.column_stride, ")");
}

}  // namespace tilewise::backends::cpu
