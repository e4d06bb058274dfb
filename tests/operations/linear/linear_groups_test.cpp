// Groups of any size, and offsets and counts that are wrong: results are defined, on every implementation.
#include <limits>

#include "linear_support.hpp"

namespace tilewise {
namespace {

using test::element, test::rows_for, test::SmallLinear;

/// The expert of each row; -1: nobody's.
using Experts = std::vector<std::int64_t>;

/// Runs the call by every implementation and looks at each row.
void expect_groups(SmallLinear& call, const Experts& experts) {
  for (const std::string& name : rows_for(describe(call.forward))) {
    std::fill_n(static_cast<float*>(call.forward.out.data), 24, 77.0f);
    grouped_linear(call.forward, {name});
    for (std::int64_t t = 0; t < 6; ++t) {
      const std::int64_t e = experts[static_cast<std::size_t>(t)];
      for (std::int64_t n = 0; n < 4; ++n) {
        double sum = e < 0 ? 0.0 : element(call.forward.bias, e * 4 + n);
        for (std::int64_t k = 0; e >= 0 && k < 8; ++k)
          sum += element(call.forward.x, t * 8 + k) * element(call.forward.w, (e * 4 + n) * 8 + k);
        EXPECT_EQ(element(call.forward.out, t * 4 + n), sum) << name << " row " << t;
      }
    }
  }
}

void expect_offsets(const std::vector<std::int64_t>& offsets, const Experts& experts) {
  for (const DType dtype : {DType::i32, DType::i64}) {
    SmallLinear call(3);
    call.forward.offsets = call.memory.integers(dtype, offsets);
    expect_groups(call, experts);
  }
}

void expect_counts(const std::vector<std::int64_t>& counts, const Experts& experts) {
  for (const DType dtype : {DType::i32, DType::i64}) {
    SmallLinear call(3);
    call.forward.offsets = {};
    call.forward.counts = call.memory.integers(dtype, counts);
    expect_groups(call, experts);
  }
}

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max(),
                       kLeast = std::numeric_limits<std::int32_t>::min();

TEST(LinearGroups, OfAnySize) {
  expect_offsets({0, 2, 4, 6}, {0, 0, 1, 1, 2, 2});
  expect_offsets({0, 0, 6, 6}, {1, 1, 1, 1, 1, 1});
  expect_offsets({1, 2, 2, 4}, {-1, 0, 2, 2, -1, -1});
  expect_offsets({3, 3, 3, 3}, {-1, -1, -1, -1, -1, -1});
  expect_counts({1, 0, 5}, {0, 2, 2, 2, 2, 2});
  expect_counts({0, 2, 0}, {1, 1, -1, -1, -1, -1});
}

TEST(LinearGroups, OffsetsThatFallOrLieOutsideAreClamped) {
  expect_offsets({0, 4, 2, 6}, {0, 0, 0, 0, 2, 2});
  expect_offsets({-3, 1, kMost, 2}, {0, 1, 1, 1, 1, 1});
  expect_offsets({kLeast, kLeast, kMost, kMost}, {1, 1, 1, 1, 1, 1});
  expect_offsets({kMost, 0, 1, 2}, {-1, -1, -1, -1, -1, -1});
}

TEST(LinearGroups, CountsBeyondTheRowsAreCutAndNegativeOnesAreNone) {
  expect_counts({2, -7, 3}, {0, 0, 2, 2, 2, -1});
  expect_counts({4, kMost, 1}, {0, 0, 0, 0, 1, 1});
  expect_counts({kLeast, kMost, kMost}, {1, 1, 1, 1, 1, 1});
}

TEST(LinearGroups, WithoutRowsExpertsOutputsOrDepth) {
  for (const auto& [tokens, experts, n, k] :
       std::vector<std::array<std::int64_t, 4>>{{0, 3, 4, 8}, {6, 0, 4, 8}, {6, 3, 0, 8}, {6, 3, 4, 0}}) {
    test::Memory memory;
    LinearArguments call;
    call.x = memory.tensor({tokens, k}, DType::f32);
    call.w = memory.tensor({experts, n, k}, DType::f32);
    call.bias = memory.tensor({experts, n}, DType::f32);
    for (std::int64_t i = 0; i < experts * n; ++i) static_cast<float*>(call.bias.data)[i] = 3.0f;
    std::vector<std::int64_t> offsets(static_cast<std::size_t>(experts + 1), tokens);
    offsets[0] = 0;
    call.offsets = memory.integers(DType::i32, offsets);
    call.out = memory.tensor({tokens, n}, DType::f32);
    for (const std::string& name : rows_for(describe(call))) {
      std::fill_n(static_cast<float*>(call.out.data), tokens * n, 77.0f);
      grouped_linear(call, {name});
      for (std::int64_t i = 0; i < tokens * n; ++i)
        EXPECT_EQ(static_cast<float*>(call.out.data)[i], experts > 0 ? 3.0f : 0.0f) << name;
    }
  }
}

TEST(LinearGroups, AnExpertWithoutRowsHasGradientsOf0) {
  SmallLinear call(3);
  call.backward.offsets = call.memory.integers(DType::i32, {0, 2, 2, 5});
  for (const std::string& name : rows_for(describe(call.backward))) {
    for (const TensorView& view : {call.backward.dx, call.backward.dw, call.backward.dbias})
      std::fill_n(static_cast<float*>(view.data), view.numel(), 77.0f);
    linear_backward(call.backward, {name});
    const auto* dx = static_cast<const float*>(call.backward.dx.data);
    const auto* dw = static_cast<const float*>(call.backward.dw.data);
    const auto* dbias = static_cast<const float*>(call.backward.dbias.data);
    for (std::int64_t i = 0; i < 32; ++i) EXPECT_EQ(dw[32 + i], 0.0f) << name;
    for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(dbias[4 + i], 0.0f) << name;
    for (std::int64_t i = 0; i < 8; ++i) EXPECT_EQ(dx[40 + i], 0.0f) << name;
  }
}

}  // namespace
}  // namespace tilewise
