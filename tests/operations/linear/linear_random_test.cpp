// Random problems on every row of linear layers against the reference, and that the bounds are tight enough to see an
// error.
#include <algorithm>
#include <cmath>

#include "../../support/random_rows.hpp"
#include "device/common/float16.h"
#include "linear_support.hpp"
#include "verify/linear_call.hpp"
#include "verify/verifier.hpp"
#include "verify/verify.hpp"

namespace tilewise {
namespace {

using operations::linear::Feature, operations::linear::FeatureSet;

class LinearRandom : public testing::TestWithParam<std::string> {
 protected:
  /// Of what the row honours alone. Rows of instruction sets that are not here refuse all.
  void check(Feature other_pass, std::uint64_t first, int count) {
    count = problems_of(count);
    constexpr const LinearProblem* kTag = nullptr;
    const core::Implementation* row = core::find_row(core::implementation_table(), operation_of(kTag), GetParam());
    const auto features = FeatureSet::from_bits(row->supported_features()).minus({other_pass});
    if (!features.contains(Feature::forward) && !features.contains(Feature::backward)) return;
    const verify::Verifier& verifier = verify::verifier_of(operation_of(kTag));
    const verify::Limits limits{features.bits(), 3e5};
    int failures = 0, passed = 0;
    for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(count) && failures < 5; ++seed) {
      const verify::Report report =
          verify::check_implementation(verifier.random_problem(seed, limits), GetParam(), seed);
      if (report.status == verify::Status::refused && report.message.starts_with("this processor")) return;
      passed += report.status == verify::Status::passed ? 1 : 0;
      if (report.status != verify::Status::failed) continue;
      ++failures;
      ADD_FAILURE() << report.to_string();
    }
    EXPECT_GE(passed, 0.9 * count);  // a few need products or strides that a row has not
  }
};

TEST_P(LinearRandom, Forward) { check(Feature::backward, 700000, 120); }
TEST_P(LinearRandom, Backward) { check(Feature::forward, 800000, 120); }

INSTANTIATE_TEST_SUITE_P(Rows, LinearRandom, testing::ValuesIn(native_rows_of<LinearProblem>()), case_of_row);

/// Results rounded to bf16 once more than they may be: every output's bound must break, by far.
TEST(LinearBounds, SeeALostRounding) {
  for (const std::string text :
       {"linear tokens=9 n=7 k=50 groups=offsets_i32 num_experts=3 bias=f32 activation=gelu",
        "linear_backward tokens=9 n=7 k=50 groups=offsets_i32 num_experts=3 bias=f32 activation=silu dbias=1"}) {
    const verify::LinearCall call(parse_problem(text), 14, verify::Values::ordinary);
    const std::vector<verify::Output> expected = call.make_outputs(1);
    call.run(call.plan("reference", expected), expected);
    const std::vector<verify::ErrorBounds> bounds = call.bounds(expected, 0.0);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      double largest = 0.0;
      std::size_t index = 0;
      const TensorView& view = expected[i].buffer.view();
      verify::for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
        const double value = verify::value_at(view, offset);
        const double rounded = device::bf16_to_float(device::float_to_bf16(static_cast<float>(value)));
        if (bounds[i].limit[index] > 0.0)
          largest = std::max(largest, std::abs(rounded - value) / bounds[i].limit[index]);
        ++index;
      });
      EXPECT_GT(largest, 20.0) << expected[i].name;
    }
  }
}

}  // namespace
}  // namespace tilewise
