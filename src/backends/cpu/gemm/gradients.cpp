// Blocks of weights' gradients, of biases' and rows of activations over threads. No sum is cut, so that results repeat.
#include "backends/cpu/gemm/gradients.hpp"

#include <algorithm>
#include <utility>

#include "backends/cpu/gemm/elements.hpp"
#include "backends/cpu/merge/merge_rows.hpp"
#include "backends/cpu/rows.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "core/parallel.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::cpu {
namespace {

using core::ceil_div;

/// Columns [begin, begin + count) of the rows of a group.
OuterRows outer_rows(const GroupedRows& rows, std::int64_t first, std::int64_t begin, std::int64_t count, DType sum) {
  OuterRows part{};
  part.element = gemm_element(rows.dtype);
  part.stride = rows.stride;
  part.columns = count;
  part.data = advance(const_cast<void*>(rows.data), begin, size_of(rows.dtype));
  if (rows.index != nullptr)
    part.index = rows.index + first;
  else
    part.data = advance(const_cast<void*>(part.data), first * rows.stride, size_of(rows.dtype));
  if (rows.factor != nullptr) part.factor = advance(const_cast<void*>(rows.factor), first, size_of(sum));
  return part;
}

std::size_t element_bytes(GemmElement element) {
  return element == GemmElement::f64 ? 8 : element == GemmElement::f32 ? 4 : 2;
}

/// Rows [first, first + count) of a task.
ActivationTask rows_from(ActivationTask t, std::int64_t first, std::int64_t count) {
  const std::size_t real = t.element == GemmElement::f64 ? 8 : 4, element = element_bytes(t.element);
  const auto move = [&](const void* from, std::int64_t stride, std::size_t size) {
    return from == nullptr ? nullptr : advance(const_cast<void*>(from), first * stride, size);
  };
  t.rows = count;
  t.arguments = move(t.arguments, t.argument_stride, real);
  t.dresult = move(t.dresult, t.dresult_stride, element_bytes(t.dresult_element));
  t.factor = move(t.factor, 1, real);
  t.dargument = move(t.dargument, t.dargument_stride, element);
  t.result = move(t.result, t.result_stride, element);
  t.products = move(t.products, 1, real);
  return t;
}

}  // namespace

operations::ExpertMatrices transposed(operations::ExpertMatrices w) {
  std::swap(w.rows, w.columns);
  std::swap(w.row_stride, w.column_stride);
  std::swap(w.scales.block_rows, w.scales.block_columns);
  std::swap(w.scales.row_stride, w.scales.column_stride);
  return w;
}

void run_weight_gradient(const GemmKernel& kernel, const std::int64_t* groups, const GroupedRows& a,
                         const GroupedRows& b, const operations::ExpertMatrices& dw) {
  if (dw.column_stride != 1 && dw.columns > 1) return run_weight_gradient(kernel, groups, b, a, transposed(dw));
  if (dw.rows == 0 || dw.columns == 0) return;
  const DType sum = dw.dtype == DType::f64 ? DType::f64 : DType::f32;
  const std::int64_t down = ceil_div(dw.rows, kOuterColumns), across = ceil_div(dw.columns, kOuterColumns);
  const std::size_t bytes = kernel.outer_scratch(std::min(dw.rows, kOuterColumns), std::min(dw.columns, kOuterColumns));
  const auto rows = static_cast<double>(groups[dw.num_experts] - groups[0]);
  const double written = static_cast<double>(dw.num_experts) * static_cast<double>(dw.rows * dw.columns);
  const int workers = workers_for(2.0 * rows * static_cast<double>(dw.rows * dw.columns) + 4.0 * written);
  core::parallel_for(dw.num_experts * down * across, workers, [&](std::int64_t task, int) {
    if (core::abandoned()) return;
    const std::int64_t expert = task / (down * across), i = task / across % down * kOuterColumns;
    const std::int64_t j = task % across * kOuterColumns, first = groups[expert];
    OuterTask t{};
    t.a = outer_rows(a, first, i, std::min(kOuterColumns, dw.rows - i), sum);
    t.b = outer_rows(b, first, j, std::min(kOuterColumns, dw.columns - j), sum);
    t.rows = groups[expert + 1] - first;
    t.out = advance(dw.data, expert * dw.expert_stride + i * dw.row_stride + j, size_of(dw.dtype));
    t.out_stride = dw.row_stride;
    t.out_element = gemm_element(dw.dtype);
    kernel.outer(t, thread_scratch(bytes));
  });
}

void run_bias_gradient(const std::int64_t* groups, const GroupedRows& a, DType sum,
                       const operations::ExpertVectors& dbias) {
  constexpr std::int64_t kColumns = 512;
  const std::int64_t blocks = ceil_div(dbias.size, kColumns);
  const auto rows = static_cast<double>(groups[dbias.num_experts] - groups[0]);
  const int workers = workers_for(2.0 * rows * static_cast<double>(dbias.size));
  const auto add = [&]<typename Real>(Real* total, std::int64_t expert, std::int64_t begin, std::int64_t count) {
    std::fill_n(total, count, Real{0});
    for (std::int64_t row = groups[expert]; row < groups[expert + 1]; ++row) {
      const std::int64_t at = (a.index != nullptr ? a.index[row] : row) * a.stride + begin;
      const Real factor = a.factor == nullptr ? Real{1} : static_cast<const Real*>(a.factor)[row];
      add_weighted(total, advance(const_cast<void*>(a.data), at, size_of(a.dtype)), a.dtype, count, factor);
    }
    for (std::int64_t i = 0; i < count; ++i)
      operations::store_element(dbias.dtype, dbias.data, expert * dbias.expert_stride + (begin + i) * dbias.stride,
                                static_cast<double>(total[i]));
  };
  core::parallel_for(dbias.num_experts * blocks, workers, [&](std::int64_t task, int) {
    const std::int64_t begin = task % blocks * kColumns, count = std::min(kColumns, dbias.size - begin);
    void* total = thread_scratch(static_cast<std::size_t>(count) * size_of(sum));
    if (sum == DType::f64)
      add(static_cast<double*>(total), task / blocks, begin, count);
    else
      add(static_cast<float*>(total), task / blocks, begin, count);
  });
}

void run_activation_gradient(const GemmKernel& kernel, const ActivationTask& task) {
  constexpr std::int64_t kRows = 32;
  constexpr double kFlopsOfOne = 60;  // an exponential, and what is around it
  const int workers = workers_for(kFlopsOfOne * static_cast<double>(task.rows * task.results));
  core::parallel_for(ceil_div(task.rows, kRows), workers, [&](std::int64_t block, int) {
    kernel.activation(rows_from(task, block * kRows, std::min(kRows, task.rows - block * kRows)),
                      thread_scratch(kernel.activation_scratch(task.results)));
  });
}

void check_weight_gradient(const char* name, const operations::ExpertMatrices& dw, DType dtype) {
  const bool fits =
      dtype == DType::f64 ? dw.dtype == DType::f64 : operations::is_element_type(dw.dtype) && dw.dtype != DType::f64;
  if (!fits)
    core::invalid_type(name, ": dtype must be ", dtype == DType::f64 ? "f64" : "f32, bf16 or f16", " of x in ",
                       to_string(dtype), " (got ", to_string(dw.dtype), ")");
  if (dw.row_stride != 1 && dw.rows > 1 && dw.column_stride != 1 && dw.columns > 1)
    core::invalid_argument(name, ": one of the last two dimensions must have stride 1 (got strides ", dw.row_stride,
                           " and ", dw.column_stride, ")");
}

}  // namespace tilewise::backends::cpu
