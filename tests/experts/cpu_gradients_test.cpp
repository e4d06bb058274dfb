// Gradients of linear layers and experts on every instruction set that this machine has, against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "backends/reference/linear/reference_linear.hpp"
#include "backends/reference/moe/reference_moe.hpp"
#include "core/num_threads.hpp"
#include "cpu_support.hpp"
#include "quantized.hpp"

namespace tilewise {
namespace {

using namespace experts_test;

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

/// Gradients of the layer drawn, of which some may be unwanted.
void draw_gradients(Tensors& tensors, DType dtype, MoeParams& p) {
  verify::Random& random = tensors.random;
  p.dout = tensors.matrix(draw_gradient_dtype(tensors, dtype), p.out.rows, p.out.columns, draw_layout(tensors, false));
  if (random.chance(0.8))
    p.dx = tensors.matrix(draw_gradient_dtype(tensors, dtype), p.x.rows, p.x.columns, draw_layout(tensors, false));
  if (random.chance(0.8))
    p.dtopk_weights = tensors.matrix(draw_gradient_dtype(tensors, dtype), p.topk_ids.rows, p.topk_ids.columns);
  if (random.chance(0.8)) p.dgate_up = like(tensors, p.gate_up, draw_gradient_dtype(tensors, dtype));
  if (random.chance(0.8)) p.ddown = like(tensors, p.down, draw_gradient_dtype(tensors, dtype));
  if (p.gate_up_bias.data != nullptr)
    p.dgate_up_bias = tensors.vectors(dtype, p.gate_up_bias.num_experts, p.gate_up_bias.size);
  if (p.down_bias.data != nullptr) p.ddown_bias = tensors.vectors(dtype, p.down_bias.num_experts, p.down_bias.size);
}

/// The same gradients in f64.
MoeParams reference_of(Tensors& tensors, MoeParams p) {
  const auto matrix = [&](Matrix& m) {
    if (m.data != nullptr) m = tensors.matrix(DType::f64, m.rows, m.columns);
  };
  const auto weights = [&](ExpertMatrices& w) {
    if (w.data != nullptr) w = tensors.weights(DType::f64, w.num_experts, w.rows, w.columns);
  };
  const auto vectors = [&](ExpertVectors& v) {
    if (v.data != nullptr) v = tensors.vectors(DType::f64, v.num_experts, v.size);
  };
  matrix(p.dx), matrix(p.dtopk_weights);
  weights(p.dgate_up), weights(p.ddown);
  vectors(p.dgate_up_bias), vectors(p.ddown_bias);
  return p;
}

void run_backward(const MoeParams& p, const GemmKernels& kernels) {
  for (const Matrix* m : {&p.dx, &p.dtopk_weights})
    if (m->data != nullptr) experts_test::fill_with_nan(*m);
  for (const ExpertMatrices* w : {&p.dgate_up, &p.ddown})
    if (w->data != nullptr) fill_with_nan(*w);
  std::vector<std::byte> workspace = poisoned(backends::cpu::moe_backward_workspace_size(p));
  backends::cpu::run_moe_backward(p, kernels, aligned(workspace));
}

void expect_gradients(const MoeParams& p, const MoeParams& reference, DType dtype, const std::string& what) {
  const double rest = rest_of(dtype), terms = terms_of(p.x.rows);
  if (p.dx.data != nullptr) expect_near(p.dx, reference.dx, rounding_of(p.dx.dtype), rest, "dx " + what, 1);
  if (p.dtopk_weights.data != nullptr)
    expect_near(p.dtopk_weights, reference.dtopk_weights, rounding_of(p.dtopk_weights.dtype), rest,
                "dtopk_weights " + what, terms_of(p.x.columns));
  if (p.dgate_up.data != nullptr)
    expect_weights_near(p.dgate_up, reference.dgate_up, dtype, p.x.rows, "dgate_up " + what);
  if (p.ddown.data != nullptr) expect_weights_near(p.ddown, reference.ddown, dtype, p.x.rows, "ddown " + what);
  if (p.dgate_up_bias.data != nullptr)
    expect_near(rows_of(p.dgate_up_bias), rows_of(reference.dgate_up_bias), rounding_of(dtype), rest,
                "dgate_up_bias " + what, terms);
  if (p.ddown_bias.data != nullptr)
    expect_near(rows_of(p.ddown_bias), rows_of(reference.ddown_bias), rounding_of(dtype), rest, "ddown_bias " + what,
                terms);
}

TEST(CpuExpertsGradients, EqualTheReference) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Tensors tensors(seed);
    const DType dtype = kDTypes[seed % 4];
    MoeParams p = draw_moe(tensors, dtype);
    draw_gradients(tensors, dtype, p);
    const MoeParams reference = reference_of(tensors, p);
    backends::reference::moe_backward(reference);
    for (const Isa isa : isas()) {
      if (!has(gemm_kernels_of(isa), dtype)) continue;
      run_backward(p, gemm_kernels_of(isa));
      std::ostringstream what;
      what << to_string(isa) << " " << to_string(dtype) << " dout " << to_string(p.dout.dtype) << " seed " << seed;
      expect_gradients(p, reference, dtype, what.str());
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CpuExpertsGradients, AreTheSameOnAnyNumberOfThreadsAnd0WithoutTokens) {
  Tensors tensors(20);
  MoeParams p = draw_moe(tensors, DType::bf16);
  p.x = tensors.matrix(DType::bf16, 90, p.x.columns);
  p.out = p.dout = tensors.matrix(DType::bf16, 90, p.x.columns);
  p.topk_ids = tensors.ids(DType::i32, 90, 2, [&] { return p.first_expert; });  // the others get none
  p.topk_weights = tensors.matrix(DType::f32, 90, 2);
  p.dtopk_weights = tensors.matrix(DType::f32, 90, 2);
  p.dx = tensors.matrix(DType::bf16, 90, p.x.columns);
  p.dgate_up = tensors.weights(DType::f32, p.gate_up.num_experts, p.gate_up.rows, p.gate_up.columns);
  p.ddown = tensors.weights(DType::bf16, p.down.num_experts, p.down.rows, p.down.columns, {.by_columns = true});
  ASSERT_GT(p.gate_up.num_experts, 1);
  for (const Isa isa : isas()) {
    if (!has(gemm_kernels_of(isa), DType::bf16)) continue;
    std::vector<double> expected;
    for (const int threads : {1, 2, 5}) {
      core::set_num_threads(threads, 0);
      run_backward(p, gemm_kernels_of(isa));
      std::vector<double> found = values_of(p.dx);
      for (std::int64_t e = 0; e < p.gate_up.num_experts; ++e) {
        for (const ExpertMatrices* w : {&p.dgate_up, &p.ddown}) {
          const std::vector<double> values = values_of(matrix_of(*w, e));
          if (e > 0) {
            EXPECT_EQ(values, std::vector<double>(values.size(), 0.0)) << to_string(isa) << " expert " << e;
          }
          found.insert(found.end(), values.begin(), values.end());
        }
      }
      if (threads == 1) expected = found;
      EXPECT_EQ(found, expected) << to_string(isa) << " on " << threads;
    }
  }
  core::set_num_threads(core::num_cores(), 0);
}

TEST(CpuLinearGradients, StridesBeyond32Bits) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 4096;
  const Reserved memory(3 * kStride * sizeof(std::uint16_t));
  ASSERT_NE(memory.data(), MAP_FAILED);
  Tensors tensors(6);
  LinearParams p{};
  p.x = tensors.matrix(DType::bf16, 30, 50);
  p.w = tensors.weights(DType::bf16, 3, 40, 50);
  p.dout = tensors.matrix(DType::bf16, 30, 40);
  p.dw = tensors.weights(DType::bf16, 3, 40, 50);
  p.groups = tensors.integers(DType::i32, {0, 9, 9, 30});
  LinearParams far = p;
  far.dw.data = memory.data();
  far.dw.expert_stride = kStride;
  for (const Isa isa : isas()) {
    if (!has(gemm_kernels_of(isa), DType::bf16)) continue;
    for (const LinearParams* one : {&p, &far}) {
      std::vector<std::byte> workspace = poisoned(backends::cpu::linear_backward_workspace_size(*one));
      backends::cpu::run_linear_backward(*one, gemm_kernels_of(isa), aligned(workspace));
    }
    for (std::int64_t e = 0; e < 3; ++e)
      EXPECT_EQ(values_of(matrix_of(far.dw, e)), values_of(matrix_of(p.dw, e))) << to_string(isa) << " expert " << e;
  }
}

TEST(CpuLinearGradients, OfRowsThroughQuantizedWeights) {
  constexpr std::string_view kFormats[] = {"fp8_tensor", "fp8_row", "fp8_128x128", "mxfp8", "mxfp4", "nvfp4"};
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Tensors tensors(seed);
    const DType dtype = kDTypes[seed % 3];
    const std::string_view format = kFormats[seed % std::size(kFormats)];
    LinearParams p = draw_linear(tensors, dtype);
    tensors.deviation = 1 / std::sqrt(static_cast<double>(p.w.rows));
    p.w = draw_quantized(tensors, parse_block_format(format), p.w.num_experts, p.w.rows, p.w.columns).elements;
    tensors.deviation = 1;
    p.dout = tensors.matrix(draw_gradient_dtype(tensors, dtype), p.out.rows, p.out.columns);
    p.dx = tensors.matrix(DType::f32, p.x.rows, p.x.columns);
    LinearParams reference = p;
    reference.dx = tensors.matrix(DType::f64, p.x.rows, p.x.columns);
    backends::reference::linear_backward(reference);
    for (const Isa isa : isas()) {
      if (!has(gemm_kernels_of(isa), dtype, p.w.dtype)) continue;
      experts_test::fill_with_nan(p.dx);
      std::vector<std::byte> workspace = poisoned(backends::cpu::linear_backward_workspace_size(p));
      backends::cpu::run_linear_backward(p, gemm_kernels_of(isa), aligned(workspace));
      std::ostringstream what;
      what << to_string(isa) << " " << to_string(dtype) << " x " << format << " seed " << seed;
      expect_near(p.dx, reference.dx, 0, rest_of(dtype), what.str());
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace tilewise
