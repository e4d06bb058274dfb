// Linear layers' portable kernels under emulation against the reference: tiles of every size, few rows in parts of the
// depth, every format, groups by numbers that are wrong, rows that start anywhere, gradients, and special values.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "../support/emulated_machines.hpp"
#include "../support/expect_passed.hpp"
#include "tilewise/linear.hpp"

namespace tilewise::test {
namespace {

class EmulatedLinear : public testing::TestWithParam<std::string> {
 protected:
  /// Seeds differ in strides and groups, and one in four in special values, one in five in large ones.
  static void check(const std::string& problem, std::uint64_t seeds) {
    for (std::uint64_t seed = 0; seed < seeds; ++seed) expect_passed(parse_problem(problem), GetParam(), seed);
  }
};

TEST_P(EmulatedLinear, TilesOfRows) {
  for (const char* tokens : {"1", "130"})
    check("linear dtype=bf16 n=72 k=200 bias=f32 activation=silu tokens=" + std::string(tokens), 3);
  check("linear out_dtype=bf16 n=130 k=40 tokens=70", 3);
  check("linear dtype=bf16 tokens=450 n=40 k=96 groups=offsets_i32 num_experts=3", 2);  // CDNA: weights go to registers
}

/// The emulated device has few multiprocessors, and yet more than these have tiles.
TEST_P(EmulatedLinear, FewRowsInPartsOfTheDepth) {
  check("linear dtype=f16 tokens=9 n=40 k=2048 groups=offsets_i32 num_experts=4 out_dtype=f32 bias=bf16", 4);
}

TEST_P(EmulatedLinear, Formats) {
  for (const char* formats :
       {"x_format=fp8_1x128 w_format=fp8_128x128 out_dtype=f32", "x_format=fp8_row w_format=fp8_row bias=f32",
        "x_format=mxfp8 w_format=mxfp4", "dtype=f16 w_format=mxfp4"}) {
    check("linear tokens=20 n=136 k=288 groups=counts_i64 num_experts=3 " + std::string(formats), 3);
  }
}

TEST_P(EmulatedLinear, GroupsOfAnySize) {
  check("linear dtype=bf16 tokens=100 n=24 k=48 groups=offsets_i64 num_experts=70", 12);
  check("linear dtype=bf16 tokens=60 n=24 k=48 groups=counts_i32 num_experts=5 bias=bf16", 8);
}

TEST_P(EmulatedLinear, RowsThatStartAnywhere) {
  check("linear dtype=bf16 tokens=19 n=35 k=45 w_transposed=1", 3);
  check("linear dtype=bf16 w_format=nvfp4 tokens=7 n=9 k=75", 3);
}

TEST_P(EmulatedLinear, Gradients) {
  check(
      "linear_backward dtype=bf16 tokens=70 n=72 k=80 bias=f32 dbias=1 activation=gelu groups=offsets_i32 "
      "num_experts=3",
      4);
  check("linear_backward dtype=f16 out_dtype=f32 tokens=40 n=35 k=45 bias=f16 dbias=1 dw_transposed=1", 3);
  check("linear_backward tokens=70 n=40 k=50 activation=silu", 3);
  check("linear_backward dtype=bf16 dw=0 tokens=20 n=160 k=64 w_format=mxfp4", 3);
}

TEST_P(EmulatedLinear, WithoutElements) {
  for (const char* sizes : {"tokens=0 n=8 k=8", "tokens=5 n=0 k=8", "tokens=5 n=8 k=0 bias=bf16 activation=silu"})
    check("linear dtype=bf16 " + std::string(sizes), 1);
  check("linear_backward dtype=bf16 tokens=0 n=8 k=8 bias=bf16 dbias=1", 1);
  check("linear_backward dtype=bf16 tokens=5 n=8 k=8 groups=offsets_i32 num_experts=0", 1);
}

/// A row's bits are the same alone, among many, and in a group.
TEST_P(EmulatedLinear, IsInvariantWhereItIsAsked) {
  constexpr std::int64_t kTokens = 70, kN = 40, kK = 1100;
  std::vector<float> x(kTokens * kK), w(kN * kK), all(kTokens * kN), one(kN);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = std::cos(3.0f * static_cast<float>(i));
  SelectOptions select;
  select.implementation = GetParam();
  const auto multiply = [&](std::int64_t first, std::int64_t tokens, std::vector<float>& out) {
    LinearArguments call;
    call.x = TensorView(x.data() + first * kK, DType::f32, {tokens, kK});
    call.w = TensorView(w.data(), DType::f32, {kN, kK});
    call.out = TensorView(out.data(), DType::f32, {tokens, kN});
    call.batch_invariant = true;
    linear(call, select);
  };
  multiply(0, kTokens, all);
  for (const std::int64_t row : {0, 37, 69}) {
    multiply(row, 1, one);
    for (std::size_t n = 0; n < kN; ++n) ASSERT_EQ(one[n], all[static_cast<std::size_t>(row * kN) + n]) << row;
  }
}

/// Experts that lie more than 2^31 elements apart, in memory that is there where it is touched.
TEST_P(EmulatedLinear, ExpertsFarApart) {
  constexpr std::int64_t kApart = (std::int64_t{1} << 31) + 64, kTokens = 3, kN = 8, kK = 32;
  constexpr auto kBytes = static_cast<std::size_t>(kApart + kN * kK) * sizeof(float);
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no room for " << kBytes << " bytes of addresses";
  std::vector<float> x(kTokens * kK), out(kTokens * kN), expected(kTokens * kN);
  std::vector<std::int32_t> counts{1, 2};
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  LinearArguments call;
  call.x = TensorView(x.data(), DType::f32, {kTokens, kK});
  call.w = TensorView(memory, DType::f32, {2, kN, kK});
  call.w.strides[0] = kApart;
  for (std::int64_t i = 0; i < 2 * kN * kK; ++i)
    static_cast<float*>(memory)[i / (kN * kK) * kApart + i % (kN * kK)] = std::cos(static_cast<float>(i));
  call.counts = TensorView(counts.data(), DType::i32, {2});
  const auto multiply = [&call](std::string name, std::vector<float>& to) {
    call.out = TensorView(to.data(), DType::f32, {kTokens, kN});
    SelectOptions select;
    select.implementation = std::move(name);
    grouped_linear(call, select);
  };
  multiply(GetParam(), out);
  multiply("reference", expected);
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], expected[i], 1e-5f) << i;
  munmap(memory, kBytes);
}

TEST_P(EmulatedLinear, IsNeverChosenUnaskedAndRefuses) {
  const auto row_of = [](const std::string& problem) {
    for (const ExplainRow& row : explain(parse_problem(problem)).rows)
      if (row.implementation == GetParam()) return row;
    return ExplainRow{};
  };
  const ExplainRow plain = row_of("linear dtype=bf16 tokens=1 n=8 k=8");
  EXPECT_TRUE(plain.accepted && !plain.chosen) << plain.reason;
  EXPECT_EQ(row_of("linear dtype=f64 tokens=1 n=8 k=8").reason, "does not support f64");
  EXPECT_EQ(row_of("linear_backward dtype=bf16 dw=0 w_format=fp8_row w_transposed=1 tokens=1 n=16 k=16").reason,
            "dx wants rows of w with scales of their own contiguous, n is (w_transposed, w_format=fp8_row)");
}

TILEWISE_ON_MACHINES(EmulatedLinear, "emulation.rdna");
TILEWISE_ON_MACHINES_BY_NIGHT(EmulatedLinear, "emulation.sm80", "emulation.cdna");

}  // namespace
}  // namespace tilewise::test
