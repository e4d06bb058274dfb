// Gradients of linear layers and experts on every instruction set that this machine has, against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "backends/reference/linear/reference_linear.hpp"
#include "backends/reference/moe/reference_moe.hpp"
#include "core/num_threads.hpp"
#include "cpu_support.hpp"

namespace tilewise {
namespace {

using namespace experts_test;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

Matrix rows_of(const ExpertVectors& v) { return {v.data, v.dtype, v.num_experts, v.size, v.expert_stride, v.stride}; }

/// Of sums whose terms are rounded to `dtype` once or twice.
double rest_of(DType dtype) { return dtype == DType::bf16 ? 0.02 : dtype == DType::f64 ? 1e-12 : 3e-5; }

DType draw_gradient_dtype(Tensors& tensors, DType dtype) {
  return dtype == DType::f64 ? dtype : tensors.random.pick({DType::f32, DType::bf16, DType::f16, dtype});
}

ExpertMatrices like(Tensors& tensors, const ExpertMatrices& w, DType dtype) {
  return tensors.weights(dtype, w.num_experts, w.rows, w.columns, draw_layout(tensors, true));
}

/// About what the rounded terms of a sum over rows come to, whose signs may cancel.
double terms_of(std::int64_t rows) { return std::sqrt(static_cast<double>(rows)); }

void expect_weights_near(const ExpertMatrices& own, const ExpertMatrices& expected, DType dtype, std::int64_t rows,
                         const std::string& what) {
  for (std::int64_t e = 0; e < own.num_experts; ++e)
    expect_near(matrix_of(own, e), matrix_of(expected, e), rounding_of(own.dtype), rest_of(dtype), what,
                terms_of(rows));
}

void fill_with_nan(const ExpertMatrices& w) {
  for (std::int64_t e = 0; e < w.num_experts; ++e) experts_test::fill_with_nan(matrix_of(w, e));
}

TEST(CpuLinearGradients, EqualTheReference) {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    Tensors tensors(seed);
    const DType dtype = kDTypes[seed % 4];
    LinearParams p = draw_linear(tensors, dtype);
    const DType gradient = draw_gradient_dtype(tensors, dtype);
    p.dout = tensors.matrix(gradient, p.out.rows, p.out.columns, draw_layout(tensors, false));
    if (tensors.random.chance(0.8))
      p.dx = tensors.matrix(draw_gradient_dtype(tensors, dtype), p.x.rows, p.x.columns, draw_layout(tensors, false));
    if (tensors.random.chance(0.8)) p.dw = like(tensors, p.w, draw_gradient_dtype(tensors, dtype));
    if (tensors.random.chance(0.8)) p.dbias = tensors.vectors(gradient, p.w.num_experts, p.w.rows);
    LinearParams reference = p;
    if (p.dx.data != nullptr) reference.dx = tensors.matrix(DType::f64, p.x.rows, p.x.columns);
    if (p.dw.data != nullptr) reference.dw = tensors.weights(DType::f64, p.w.num_experts, p.w.rows, p.w.columns);
    if (p.dbias.data != nullptr) reference.dbias = tensors.vectors(DType::f64, p.w.num_experts, p.w.rows);
    backends::reference::linear_backward(reference);
    for (const Isa isa : isas()) {
      if (!has(gemm_kernels_of(isa), dtype)) continue;
      if (p.dx.data != nullptr) experts_test::fill_with_nan(p.dx);
      if (p.dw.data != nullptr) fill_with_nan(p.dw);
      std::vector<std::byte> workspace = poisoned(backends::cpu::linear_backward_workspace_size(p));
      backends::cpu::run_linear_backward(p, gemm_kernels_of(isa), aligned(workspace));
      std::ostringstream what;
      what << to_string(isa) << " " << to_string(dtype) << " dout " << to_string(gradient) << " seed " << seed;
      if (p.dx.data != nullptr)
        expect_near(p.dx, reference.dx, rounding_of(p.dx.dtype), rest_of(dtype), "dx " + what.str());
      if (p.dw.data != nullptr) expect_weights_near(p.dw, reference.dw, dtype, p.x.rows, "dw " + what.str());
      if (p.dbias.data != nullptr)
        expect_near(rows_of(p.dbias), rows_of(reference.dbias), rounding_of(p.dbias.dtype), rest_of(dtype),
                    "dbias " + what.str(), terms_of(p.x.rows));
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace tilewise
