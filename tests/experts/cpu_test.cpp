// Linear layers and experts of every instruction set that this machine has, against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "backends/reference/linear/reference_linear.hpp"
#include "backends/reference/moe/reference_moe.hpp"
#include "core/num_threads.hpp"
#include "cpu_support.hpp"
#include "tilewise/error.hpp"

namespace tilewise {
namespace {

using namespace experts_test;

TEST(CpuLinear, EqualsTheReference) {
  for (std::uint64_t seed = 0; seed < 160; ++seed) {
    Tensors tensors(seed);
    const DType dtype = kDTypes[seed % 4];
    LinearParams p = draw_linear(tensors, dtype);
    LinearParams reference = p;
    reference.out = tensors.matrix(DType::f64, p.out.rows, p.out.columns);
    backends::reference::linear_forward(reference);
    const double rest = dtype == DType::f64 ? 1e-13 : 1e-5;
    for (const Isa isa : isas()) {
      if (!has(gemm_kernels_of(isa), dtype)) continue;
      run(p, gemm_kernels_of(isa));
      std::ostringstream what;
      what << to_string(isa) << " " << to_string(dtype) << " seed " << seed;
      expect_near(p.out, reference.out, rounding_of(p.out.dtype), rest, what.str());
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CpuExperts, EqualTheReference) {
  for (std::uint64_t seed = 0; seed < 160; ++seed) {
    Tensors tensors(seed);
    const DType dtype = kDTypes[seed % 4];
    MoeParams p = draw_moe(tensors, dtype);
    MoeParams reference = p;
    reference.out = tensors.matrix(DType::f64, p.out.rows, p.out.columns);
    backends::reference::moe_forward(reference);
    // Intermediate values are rounded too; results are sums of few or many of them.
    const double own = rounding_of(dtype), rest = dtype == DType::f64 ? 1e-13 : 2 * own + 1e-5;
    for (const Isa isa : isas()) {
      if (!has(gemm_kernels_of(isa), dtype)) continue;
      run(p, gemm_kernels_of(isa));
      std::ostringstream what;
      what << to_string(isa) << " " << to_string(dtype) << " seed " << seed;
      expect_near(p.out, reference.out, own, rest, what.str());
      if (HasFatalFailure()) return;
    }
  }
}

/// A layer of `tokens` tokens in bf16 whose experts get both few rows and many.
MoeParams some_layer(Tensors& tensors, std::int64_t tokens) {
  MoeParams p{};
  std::int64_t next = 0;
  p.x = tensors.matrix(DType::bf16, tokens, 96);
  p.out = tensors.matrix(DType::bf16, tokens, 96);
  p.topk_ids = tensors.ids(DType::i32, tokens, 2, [&] { return ++next % 9 == 0 ? 1 + next % 3 : 0; });
  p.topk_weights = tensors.matrix(DType::f32, tokens, 2);
  p.gate_up = tensors.weights(DType::bf16, 4, 2 * 72, 96);
  p.down = tensors.weights(DType::bf16, 4, 96, 72, {.by_columns = true});
  p.gate_layout = GateLayout::concatenated;
  p.activation.kind = ActivationKind::silu;
  return p;
}

TEST(CpuExperts, AreTheSameOnAnyNumberOfThreads) {
  Tensors tensors(5);
  const MoeParams p = some_layer(tensors, 60);
  for (const Isa isa : isas()) {
    if (!has(gemm_kernels_of(isa), DType::bf16)) continue;
    core::set_num_threads(1, 0);
    run(p, gemm_kernels_of(isa));
    const std::vector<double> expected = values_of(p.out);
    for (const int threads : {2, 3, 7}) {
      core::set_num_threads(threads, 0);
      run(p, gemm_kernels_of(isa));
      EXPECT_EQ(values_of(p.out), expected) << to_string(isa) << " on " << threads;
    }
  }
  core::set_num_threads(core::num_cores(), 0);
}

TEST(CpuExperts, BatchInvariantTokensDoNotDependOnOthers) {
  Tensors tensors(6);
  MoeParams p = some_layer(tensors, 60);
  p.batch_invariant = true;
  for (const Isa isa : isas()) {
    if (!has(gemm_kernels_of(isa), DType::bf16)) continue;
    run(p, gemm_kernels_of(isa));
    const std::vector<double> expected = values_of(p.out);
    MoeParams alone = p;
    alone.out = tensors.matrix(DType::bf16, 1, 96);
    for (const std::int64_t token : {0, 17, 59}) {
      const auto from = [&](Matrix m) {
        m.data = static_cast<std::byte*>(m.data) + token * m.row_stride * static_cast<std::int64_t>(size_of(m.dtype));
        m.rows = 1;
        return m;
      };
      alone.x = from(p.x), alone.topk_ids = from(p.topk_ids), alone.topk_weights = from(p.topk_weights);
      run(alone, gemm_kernels_of(isa));
      EXPECT_EQ(values_of(alone.out),
                std::vector<double>(expected.begin() + 96 * token, expected.begin() + 96 * (token + 1)))
          << to_string(isa) << " token " << token;
    }
  }
}

/// More tokens than share the workspace: the second product's columns come in parts.
TEST(CpuExperts, ManyTokensAreWhatFewOnesAreByNight) {
  constexpr std::int64_t kTokens = 9000, kFew = 20, kHidden = 1024, kInner = 8;
  Tensors tensors(12);
  MoeParams p{};
  p.gate_layout = GateLayout::none;
  p.batch_invariant = true;
  p.x = tensors.matrix(DType::bf16, kTokens, kHidden);
  p.gate_up = tensors.weights(DType::bf16, 3, kInner, kHidden);
  p.down = tensors.weights(DType::bf16, 3, kHidden, kInner);
  p.down_bias = tensors.vectors(DType::f32, 3, kHidden);
  p.topk_ids = tensors.ids(DType::i32, kTokens, 8, [&] { return tensors.random.integer(0, 2); });
  p.topk_weights = tensors.matrix(DType::f32, kTokens, 8);
  p.out = tensors.matrix(DType::bf16, kTokens, kHidden);
  ASSERT_LT(backends::cpu::moe_workspace_size(p), std::size_t{300} << 20);
  const GemmKernels& kernels = gemm_kernels_of(isas().back());
  run(p, kernels);
  MoeParams few = p;
  const auto last = [&](const Matrix& m) {
    Matrix rows = m;
    rows.rows = kFew;
    const std::int64_t at = (kTokens - kFew) * m.row_stride * static_cast<std::int64_t>(size_of(m.dtype));
    rows.data = static_cast<std::byte*>(m.data) + at;
    return rows;
  };
  few.x = last(p.x), few.topk_ids = last(p.topk_ids), few.topk_weights = last(p.topk_weights);
  few.out = tensors.matrix(DType::bf16, kFew, kHidden);
  run(few, kernels);
  EXPECT_EQ(values_of(last(p.out)), values_of(few.out));
}

TEST(CpuExperts, NaNReachesItsOwnRowAndThoseOfItsExpert) {
  Tensors tensors(7);
  MoeParams p = some_layer(tensors, 60);
  for (const Isa isa : isas()) {
    if (!has(gemm_kernels_of(isa), DType::bf16)) continue;
    for (const bool in_weight : {false, true}) {
      MoeParams poisoned = p;
      const Matrix& to = in_weight ? matrix_of(p.gate_up, 2) : p.x;
      const double before = at(to, 7, 3);
      set(to, 7, 3, std::nan(""));
      run(poisoned, gemm_kernels_of(isa));
      for (std::int64_t t = 0; t < 60; ++t) {
        bool expected = t == 7;
        if (in_weight)
          expected = experts_test::id_at(p.topk_ids, t, 0) == 2 || experts_test::id_at(p.topk_ids, t, 1) == 2;
        for (std::int64_t n = 0; n < 96; ++n)
          ASSERT_EQ(std::isnan(at(p.out, t, n)), expected)
              << to_string(isa) << " token " << t << " weight " << in_weight;
      }
      set(to, 7, 3, before);
    }
  }
}

TEST(CpuExperts, StridesBeyond32Bits) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 4096;
  const Reserved memory(3 * kStride * sizeof(std::uint16_t));
  ASSERT_NE(memory.data(), MAP_FAILED);
  Tensors tensors(8);
  MoeParams p = some_layer(tensors, 20);
  MoeParams far = p;
  far.gate_up.data = memory.data();
  far.gate_up.expert_stride = kStride;
  far.out = tensors.matrix(DType::bf16, 20, 96);
  p.topk_ids = far.topk_ids = tensors.ids(DType::i32, 20, 2, [&] { return tensors.random.integer(0, 2); });
  for (std::int64_t e = 0; e < 3; ++e) {
    const Matrix from = matrix_of(p.gate_up, e), to = matrix_of(far.gate_up, e);
    std::memcpy(to.data, from.data, static_cast<std::size_t>(from.rows * from.columns) * sizeof(std::uint16_t));
  }
  for (const Isa isa : isas()) {
    if (!has(gemm_kernels_of(isa), DType::bf16)) continue;
    run(p, gemm_kernels_of(isa));
    run(far, gemm_kernels_of(isa));
    EXPECT_EQ(values_of(far.out), values_of(p.out)) << to_string(isa);
  }
}

TEST(CpuExperts, RefuseWhatTheyCannotRead) {
  Tensors tensors(9);
  MoeParams p = some_layer(tensors, 2);
  const auto message = [&] {
    try {
      std::vector<std::byte> workspace = poisoned(backends::cpu::moe_workspace_size(p));
      backends::cpu::run_moe(p, backends::cpu::kGenericGemm, aligned(workspace));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  p.x.column_stride = 2;
  EXPECT_EQ(message(), "x: the stride of the last dimension must be 1 (got 2)");
  p.x.column_stride = 1;
  p.down.column_stride = p.down.row_stride = 3;
  EXPECT_EQ(message(), "down: one of the last two dimensions must have stride 1 (got strides 3 and 3)");
  float scale = 2.0F;
  p.gate_up.scales.data = &scale;
  EXPECT_EQ(message(), "gate_up: must have no scales beside bf16 (got some)");
  p.gate_up.dtype = DType::f16;
  EXPECT_EQ(message(), "gate_up: dtype must be bf16, fp8_e4m3 or fp4_e2m1 (got f16)");
  p.out.dtype = DType::f64;
  EXPECT_EQ(message(), "out: dtype must be f32, bf16 or f16 of x in bf16 (got f64)");
}

}  // namespace
}  // namespace tilewise
