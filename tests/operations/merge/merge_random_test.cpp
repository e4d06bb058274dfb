// Random problems on every row of merge against the reference, and that the bounds are tight enough to see an error.
#include <algorithm>
#include <cmath>

#include "../../support/random_rows.hpp"
#include "backends/cpu/merge/merge_rows.hpp"
#include "device/common/float16.h"
#include "merge_support.hpp"
#include "verify/merge_call.hpp"
#include "verify/verifier.hpp"
#include "verify/verify.hpp"

namespace tilewise {
namespace {

using operations::merge::Feature, operations::merge::FeatureSet;

class MergeRandom : public testing::TestWithParam<std::string> {
 protected:
  void check(Feature other_pass, std::uint64_t first, int count) {
    count = problems_of(count);
    constexpr const MergeProblem* kTag = nullptr;
    const verify::Verifier& verifier = verify::verifier_of(operation_of(kTag));
    const verify::Limits limits{FeatureSet::all().minus({other_pass}).bits(), 3e5};
    int failures = 0;
    for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(count) && failures < 5; ++seed) {
      const verify::Report report =
          verify::check_implementation(verifier.random_problem(seed, limits), GetParam(), seed);
      if (report.status == verify::Status::passed) continue;
      ++failures;
      ADD_FAILURE() << report.to_string();
    }
  }
};

TEST_P(MergeRandom, Forward) { check(Feature::backward, 700000, 150); }
TEST_P(MergeRandom, Backward) { check(Feature::forward, 800000, 150); }

INSTANTIATE_TEST_SUITE_P(Rows, MergeRandom, testing::Values("cpu.generic", "reference"), case_of_row);

/// Each result rounded to bf16 once, as by a kernel that sums in bf16: every output's bound must break, by far. (With
/// this seed every part saw something.)
TEST(MergeBounds, SeeALostRounding) {
  const auto problem = parse_problem("merge_backward parts=4 seqlen_q=9 num_heads_q=4 head_dim_v=32 sink=f32 dsink=1");
  const verify::MergeCall call(problem, 14, verify::Values::ordinary);
  const std::vector<verify::Output> expected = call.make_outputs(1);
  call.run(call.plan("reference", expected), expected);
  const std::vector<verify::ErrorBounds> bounds = call.bounds(expected, 0.0);
  const std::vector<verify::Output> got = call.make_outputs(2);
  call.run(call.plan("cpu.generic", got), got);
  for (std::size_t i = 0; i < got.size(); ++i) {
    double largest = 0.0;
    std::size_t index = 0;
    verify::for_each_element(got[i].buffer.view(), [&](std::span<const std::int64_t> position, std::int64_t offset) {
      const double value = verify::value_at(got[i].buffer.view(), offset);
      const TensorView& other = expected[i].buffer.view();
      const double rounded = device::bf16_to_float(device::float_to_bf16(static_cast<float>(value)));
      const double error = std::abs(rounded - verify::value_at(other, verify::offset_of(other, position)));
      if (bounds[i].limit[index] > 0.0) largest = std::max(largest, error / bounds[i].limit[index]);
      ++index;
    });
    EXPECT_GT(largest, 20.0) << got[i].name;
  }
}

/// The branchless conversions are those of device/common/float16.h, NaN payloads aside.
TEST(MergeHalf, WidensAndNarrowsLikeTheOthers) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float wide = device::f16_to_float(half), own = backends::cpu::widen_f16(half);
    EXPECT_TRUE(wide == own ? std::signbit(wide) == std::signbit(own) : std::isnan(wide) && std::isnan(own)) << bits;
  }
  for (std::uint64_t bits = 0; bits < 0x100000000u; bits += 997) {
    const auto value = __builtin_bit_cast(float, static_cast<std::uint32_t>(bits));
    const std::uint16_t own = backends::cpu::narrow_f16(value), other = device::float_to_f16(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(device::f16_to_float(own))) << bits;
    } else {
      EXPECT_EQ(own, other) << bits;
    }
  }
}

}  // namespace
}  // namespace tilewise
