// Random problems on every row of experts against the reference, and that the bounds are tight enough to see an error.
#include <algorithm>
#include <cmath>

#include "../../support/random_rows.hpp"
#include "device/common/float16.h"
#include "moe_support.hpp"
#include "verify/moe_call.hpp"
#include "verify/verifier.hpp"
#include "verify/verify.hpp"

namespace tilewise {
namespace {

using operations::moe::Feature, operations::moe::FeatureSet;

class MoeRandom : public testing::TestWithParam<std::string> {
 protected:
  /// Problems with what the row declares; a set of instructions that the processor lacks serves none.
  void check(Feature other_pass, std::uint64_t first, int count) {
    count = problems_of(count);
    constexpr const MoeProblem* kTag = nullptr;
    const verify::Verifier& verifier = verify::verifier_of(operation_of(kTag));
    const core::Implementation* row = core::find_row(core::implementation_table(), operation_of(kTag), GetParam());
    const core::FeatureBits wanted = row->supported_features() & FeatureSet::all().minus({other_pass}).bits();
    const Feature pass = other_pass == Feature::forward ? Feature::backward : Feature::forward;
    if (!FeatureSet::from_bits(wanted).contains(pass)) GTEST_SKIP() << "of the other pass alone";
    int failures = 0, served = 0;
    for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(count) && failures < 5; ++seed) {
      const verify::Report report =
          verify::check_implementation(verifier.random_problem(seed, {wanted, 3e5}), GetParam(), seed);
      served += report.status == verify::Status::refused ? 0 : 1;
      if (report.status != verify::Status::failed) continue;
      ++failures;
      ADD_FAILURE() << report.to_string();
    }
    if (served == 0) GTEST_SKIP() << "the processor does not serve it";
  }
};

TEST_P(MoeRandom, Forward) { check(Feature::backward, 1700000, 150); }
TEST_P(MoeRandom, Backward) { check(Feature::forward, 1800000, 100); }

/// Of a seed whose rows' squares are 0 in fp32, beside an epsilon of 0.
TEST_P(MoeRandom, NormOfRowsWhoseSquaresVanish) {
  const AnyProblem problem = parse_problem(
      "moe dtype=bf16 weights_dtype=f16 tokens=10 hidden=256 intermediate=8 num_experts=2 top_k=3 "
      "activation=swiglu_oai alpha=1 clamp=before gate_up_bias=f16 norm=f16 norm_epsilon=0");
  const verify::Report report = verify::check_implementation(problem, GetParam(), 77142);
  if (report.status == verify::Status::refused) GTEST_SKIP() << "not served";
  EXPECT_EQ(report.status, verify::Status::passed) << report.to_string();
}

INSTANTIATE_TEST_SUITE_P(Rows, MoeRandom, testing::ValuesIn(native_rows_of<MoeProblem>()), case_of_row);

/// How many times the bound an output of `row` is off, at most, once each of its numbers is rounded to bf16.
double worst_of_rounded(const verify::MoeCall& call, const std::string& row, std::size_t output) {
  const std::vector<verify::Output> expected = call.make_outputs(1);
  call.run(call.plan("reference", expected), expected);
  const verify::ErrorBounds bounds = call.bounds(expected, 0.0)[output];
  const std::vector<verify::Output> got = call.make_outputs(2);
  call.run(call.plan(row, got), got);
  double largest = 0.0;
  std::size_t index = 0;
  verify::for_each_element(got[output].buffer.view(), [&](std::span<const std::int64_t> position, std::int64_t offset) {
    const double value = verify::value_at(got[output].buffer.view(), offset);
    const TensorView& other = expected[output].buffer.view();
    const double rounded = device::bf16_to_float(device::float_to_bf16(static_cast<float>(value)));
    const double error = std::abs(rounded - verify::value_at(other, verify::offset_of(other, position)));
    if (bounds.limit[index] > 0.0) largest = std::max(largest, error / bounds.limit[index]);
    ++index;
  });
  return largest;
}

/// As by a kernel that sums in bf16: every output's bound must break.
TEST(MoeBounds, SeeALostRounding) {
  const std::string sizes = " tokens=9 hidden=32 intermediate=24 num_experts=4 top_k=2 gate_up_bias=f32 down_bias=f32";
  for (const std::string& text : {"moe" + sizes, "moe_backward" + sizes + " dgate_up_bias=1 ddown_bias=1"}) {
    const verify::MoeCall call(parse_problem(text).get<MoeProblem>(), 14, verify::Values::ordinary);
    const std::vector<verify::Output> outputs = call.make_outputs(1);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      EXPECT_GT(worst_of_rounded(call, "reference", i), 2.0) << outputs[i].name;
  }
}

}  // namespace
}  // namespace tilewise
