// Tokens are sorted by expert, pass both products, and are summed up in the order of their experts.
#include "backends/cpu/moe/moe_kernel.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/formats/quantize.hpp"
#include "backends/cpu/gemm/gradients.hpp"
#include "backends/cpu/gemm/grouped_product.hpp"
#include "backends/cpu/merge/merge_rows.hpp"
#include "backends/cpu/moe/parts.hpp"
#include "backends/cpu/moe/saved.hpp"
#include "backends/cpu/rows.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "core/parallel.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::cpu {
namespace {

using operations::moe::MoeParams;

/// How intermediate values lie in the workspace: as they are summed up where they are quantised afterwards.
struct Intermediate {
  DType dtype;
  bool quantized;
  std::int64_t block, blocks;  ///< elements of a scale, and scales of a row

  explicit Intermediate(const MoeParams& p)
      : dtype(p.h_format.defined()           ? DType::f32
              : p.x.dtype == DType::fp8_e4m3 ? DType::bf16
                                             : p.x.dtype),
        quantized(p.h_format.defined()),
        block(p.h_format.block_columns == BlockFormat::kAll ? std::max<std::int64_t>(p.down.columns, 1)
                                                            : p.h_format.block_columns),
        blocks(quantized ? core::ceil_div(p.down.columns, block) : 0) {}

  /// Of a row.
  [[nodiscard]] std::int64_t bytes(std::int64_t columns) const {
    const std::int64_t codes = quantized ? columns + 4 * blocks : 0;
    return columns * static_cast<std::int64_t>(size_of(dtype)) + codes;
  }
};

/// What shares the workspace at a time: tokens, equal parts of the call, and columns of the second product.
struct Chunk {
  std::int64_t tokens, columns;

  /// Weights are packed once for each chunk's tokens. So where not all fit, a few columns of many tokens come first,
  /// unless a norm wants whole rows.
  Chunk(const MoeParams& p, bool whole_rows) : tokens(p.x.rows), columns(p.down.rows) {
    constexpr std::int64_t kFewColumns = 512;
    if (most_tokens(p) < p.x.rows && !whole_rows) columns = std::min(columns, kFewColumns);
    tokens = core::ceil_div(p.x.rows, std::max<std::int64_t>(core::ceil_div(p.x.rows, most_tokens(p)), 1));
  }

 private:
  [[nodiscard]] std::int64_t most_tokens(const MoeParams& p) const {
    constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
    const auto real = static_cast<std::int64_t>(size_of(sum_dtype(p.x.dtype)));
    const std::int64_t part_bytes =
        Intermediate(p).bytes(p.down.columns) + (columns + 1 + p.gate_up_out.columns) * real + 16;
    return std::max<std::int64_t>(kMostBytes / (part_bytes * std::max<std::int64_t>(p.topk_ids.columns, 1)), 1);
  }
};

struct Workspace {
  Parts parts;
  void *h, *y;               ///< Intermediate's, sum_dtype()
  void *h_codes, *h_scales;  ///< where h is quantised
  void* sums;                ///< of the first product where they are saved, sum_dtype()
  std::int64_t* saved_rows;  ///< and of each expert the row that comes next
  void* tasks;
  std::size_t bytes = 0;

  Workspace(const MoeParams& p, const Chunk& chunk, void* base) {
    const DType real = sum_dtype(p.x.dtype);
    const Intermediate h_kind(p);
    const std::int64_t count = chunk.tokens * p.topk_ids.columns, experts = p.gate_up.num_experts;
    Carver carver(base);
    parts = Parts(carver, count, experts, real);
    h = carver.take(count * p.down.columns, size_of(h_kind.dtype));
    y = carver.take(count * chunk.columns, size_of(real));
    h_codes = carver.take(h_kind.quantized ? count * p.down.columns : 0, 1);
    h_scales = carver.take(count * h_kind.blocks, sizeof(float));
    sums = carver.take(count * p.gate_up_out.columns, size_of(real));
    saved_rows = carver.integers(is_saved(p) ? experts + 1 : 0);
    tasks = carver.take(static_cast<std::int64_t>(grouped_product_workspace(experts)), 1);
    bytes = carver.used();
  }
};

/// h as rows of p.h_format.
void quantize_h(const MoeParams& p, const GemmKernels& kernels, const Workspace& w) {
  const Intermediate h(p);
  const std::int64_t parts = w.parts.groups[p.gate_up.num_experts];
  const TensorView numbers(w.h, h.dtype, {parts, p.down.columns});
  const formats::Quantized to{
      {w.h_codes, p.h_format.element, {parts, p.down.columns}}, {w.h_scales, p.h_format.scale, {parts, h.blocks}}, {}};
  if (parts > 0 && p.down.columns > 0) quantize(*kernels.formats, numbers, p.h_format, to);
}

/// The first product as it is, which is saved before it is activated.
void save_first_product(const MoeParams& p, const GemmKernels& kernels, GroupedProduct product, const Workspace& w) {
  const DType real = sum_dtype(p.x.dtype);
  const std::int64_t columns = p.gate_up_out.columns;
  product.bias = {}, product.factor = nullptr;
  product.layout = device::GateLayout::none, product.activation = {};
  product.out = w.sums, product.out_stride = columns, product.out_dtype = real;
  run_grouped_product(product, w.tasks);
  save_sums(p, w.parts, w.saved_rows, w.sums);

  // Results are all that is wanted: a row of gradients goes where its arguments were, which are read by then.
  ActivationTask t{};
  t.activation = p.activation, t.layout = p.gate_layout;
  t.rows = w.parts.groups[p.gate_up.num_experts], t.results = p.down.columns;
  t.arguments = t.dresult = t.dargument = w.sums;
  t.argument_stride = t.dresult_stride = columns;
  t.dresult_element = gemm_element(real);
  t.result = w.h, t.result_stride = p.down.columns;
  t.element = gemm_element(Intermediate(p).dtype);
  t.dargument_stride = columns * static_cast<std::int64_t>(size_of(real) / size_of(Intermediate(p).dtype));
  run_activation_gradient(*gemm_kernel(kernels, p.x.dtype, p.gate_up.dtype), t);
}

void multiply_first(const MoeParams& p, const GemmKernels& kernels, const Workspace& w) {
  const Intermediate h(p);
  GroupedProduct product{};
  product.kernels = &kernels;
  product.dtype = p.x.dtype;
  product.x = p.x.data;
  product.x_stride = p.x.row_stride;
  product.x_scales = p.x_scales;
  product.row_index = w.parts.token;
  product.groups = w.parts.groups;
  product.w = p.gate_up;
  product.bias = p.gate_up_bias;
  product.layout = p.gate_layout;
  product.activation = p.activation;
  product.factor = p.weight_on_input ? w.parts.factor : nullptr;
  product.factor_on_product = p.weight_on_input;
  product.out = w.h;
  product.out_stride = p.down.columns;
  product.out_dtype = h.dtype;
  product.batch_invariant = p.batch_invariant;
  is_saved(p) ? save_first_product(p, kernels, product, w) : run_grouped_product(product, w.tasks);
  if (h.quantized) quantize_h(p, kernels, w);
}

/// Outputs [column, column + columns) of the second product.
void multiply_second(const MoeParams& p, const GemmKernels& kernels, const Workspace& w, std::int64_t column,
                     std::int64_t columns) {
  const Intermediate h(p);
  GroupedProduct product{};
  product.kernels = &kernels;
  product.groups = w.parts.groups;
  product.batch_invariant = p.batch_invariant;
  product.dtype = h.quantized ? p.h_format.element : h.dtype;
  product.x = h.quantized ? w.h_codes : w.h;
  product.x_stride = p.down.columns;
  if (h.quantized) product.x_scales = {w.h_scales, p.h_format.scale, 1, h.block, 0, h.blocks, 1};
  product.w = p.down;
  product.w.rows = columns;
  product.first_output = column;
  product.bias = p.down_bias;
  product.layout = device::GateLayout::none;
  product.factor = p.weight_on_input || p.norm_weight.data != nullptr ? nullptr : w.parts.factor;
  product.out = w.y;
  product.out_stride = columns;
  product.out_dtype = sum_dtype(p.x.dtype);
  run_grouped_product(product, w.tasks);
}

/// A part's row, by its norm and its weight. In double: squares of fp32 numbers leave the range of fp32.
template <typename Real>
void normalise(const MoeParams& p, const Workspace& w, std::int64_t part, Real* row) {
  const std::int64_t expert = expert_of_part(w.parts, p.gate_up.num_experts, part), size = p.down.rows;
  double squares = 0;
  for (std::int64_t n = 0; n < size; ++n) squares += static_cast<double>(row[n]) * static_cast<double>(row[n]);
  const double root = std::sqrt(squares / static_cast<double>(size) + p.norm_epsilon);
  const double factor =
      (p.weight_on_input ? 1.0 : static_cast<double>(static_cast<const Real*>(w.parts.factor)[part])) / root;
  const operations::ExpertVectors& norm = p.norm_weight;
  for (std::int64_t n = 0; n < size; ++n) {
    const double weight =
        operations::load_element(norm.dtype, norm.data, expert * norm.expert_stride + n * norm.stride);
    row[n] = static_cast<Real>(static_cast<double>(row[n]) * factor * weight);
  }
}

template <typename Real>
void combine(const MoeParams& p, std::int64_t first, std::int64_t count, const Workspace& w, std::int64_t column,
             std::int64_t columns) {
  const std::int64_t top_k = p.topk_ids.columns;
  const DType real = sum_dtype(p.x.dtype);
  const int workers = workers_for(4.0 * static_cast<double>(count * top_k * columns));
  core::parallel_for(count, workers, [&](std::int64_t t, int) {
    auto* sum = static_cast<Real*>(thread_scratch(static_cast<std::size_t>(columns) * sizeof(Real)));
    std::fill_n(sum, columns, Real{0});
    for (std::int64_t j = 0; j < top_k; ++j) {
      const std::int64_t part = w.parts.place[t * top_k + j];
      if (part == kNowhere) continue;
      Real* row = static_cast<Real*>(w.y) + part * columns;
      if (p.norm_weight.data != nullptr) normalise(p, w, part, row);
      add_weighted(sum, row, real, columns, Real{1});
    }
    void* out = advance(p.out.data, (first + t) * p.out.row_stride + column, size_of(p.out.dtype));
    store_weighted(out, p.out.dtype, sum, columns, Real{1});
  });
}

void check(const MoeParams& p, const GemmKernels& kernels) {
  check_rows("x", p.x);
  check_scales("x", p.x_scales, p.x.dtype, p.x.columns);
  check_results("out", p.out, p.x.dtype);
  if (p.h_format.defined() && (!operations::moe::is_h_format(p.h_format) || p.x.dtype == DType::f64))
    core::invalid_argument("h_format: must be fp8 with scales of one row, of x in less than f64 (got ",
                           to_string(p.h_format), " of ", to_string(p.x.dtype), ")");
  const Intermediate h(p);
  const DType h_dtype = h.quantized ? p.h_format.element : h.dtype;
  check_weights("gate_up", p.gate_up, p.x.dtype);
  check_weights("down", p.down, h_dtype);
  check_kernel(kernels, p.x.dtype, p.gate_up.dtype);
  check_kernel(kernels, h_dtype, p.down.dtype);
}

}  // namespace

std::size_t moe_workspace_size(const MoeParams& p) {
  // A plan's tensors have no memory yet: whether there is a norm is not known.
  return std::max(Workspace(p, Chunk(p, false), nullptr).bytes, Workspace(p, Chunk(p, true), nullptr).bytes);
}

void run_moe(const MoeParams& p, const GemmKernels& kernels, void* workspace) {
  check(p, kernels);
  const Chunk chunk(p, p.norm_weight.data != nullptr);
  const Workspace w(p, chunk, workspace);
  if (is_saved(p)) count_parts(p, w.saved_rows), clear_saved(p, w.saved_rows[p.gate_up.num_experts]);
  for (std::int64_t first = 0; first < p.x.rows; first += chunk.tokens) {
    const std::int64_t count = std::min(chunk.tokens, p.x.rows - first);
    sort_parts(p, first, count, w.parts);
    multiply_first(p, kernels, w);
    for (std::int64_t column = 0; column < p.down.rows; column += chunk.columns) {
      const std::int64_t columns = std::min(chunk.columns, p.down.rows - column);
      multiply_second(p, kernels, w, column, columns);
      if (p.x.dtype == DType::f64)
        combine<double>(p, first, count, w, column, columns);
      else
        combine<float>(p, first, count, w, column, columns);
    }
  }
}

}  // namespace tilewise::backends::cpu
