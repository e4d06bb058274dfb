// Random problems on every row of quantising against the reference, bit for bit, and that a wrong bit is seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../../support/random_rows.hpp"
#include "core/implementation.hpp"
#include "operations/quantize/quantize.hpp"
#include "verify/compare.hpp"
#include "verify/quantize_call.hpp"
#include "verify/verifier.hpp"
#include "verify/verify.hpp"

namespace tilewise {
namespace {

using operations::quantize::Feature, operations::quantize::FeatureSet;

class QuantizeRandom : public testing::TestWithParam<std::string> {
 protected:
  /// Of what the row honours alone. Rows of instruction sets that are not here refuse all.
  void check(Feature other_pass, std::uint64_t first, int count) {
    count = problems_of(count);
    constexpr const QuantizeProblem* kTag = nullptr;
    const core::Implementation* row = core::find_row(core::implementation_table(), operation_of(kTag), GetParam());
    const auto features = FeatureSet::from_bits(row->supported_features()).minus({other_pass});
    if (!features.contains(Feature::quantize) && !features.contains(Feature::dequantize)) return;
    const verify::Verifier& verifier = verify::verifier_of(operation_of(kTag));
    const verify::Limits limits{features.bits(), 3e5};
    int failures = 0;
    for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(count) && failures < 5; ++seed) {
      const verify::Report report =
          verify::check_implementation(verifier.random_problem(seed, limits), GetParam(), seed);
      if (report.status == verify::Status::refused && report.message.starts_with("this processor")) return;
      if (report.status == verify::Status::passed) continue;
      ++failures;
      ADD_FAILURE() << report.to_string();
    }
  }
};

TEST_P(QuantizeRandom, Quantize) { check(Feature::dequantize, 100000, 200); }
TEST_P(QuantizeRandom, Dequantize) { check(Feature::quantize, 200000, 120); }

INSTANTIATE_TEST_SUITE_P(Rows, QuantizeRandom, testing::ValuesIn(cpu_rows_of<QuantizeProblem>()), case_of_row);

/// One bit of each output in turn.
TEST(QuantizeBounds, SeeAWrongBit) {
  for (const std::string text :
       {"quantize format=nvfp4 rows=3 columns=40", "dequantize format=fp8_row dtype=bf16 rows=3 columns=40"}) {
    const verify::QuantizeCall call(parse_problem(text), 14, verify::Values::ordinary);
    const std::vector<verify::Output> expected = call.make_outputs(1);
    call.run(call.plan("reference", expected), expected);
    const std::vector<verify::ErrorBounds> bounds = call.bounds(expected, 0.0);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::vector<verify::Output> got = call.make_outputs(2);
      call.run(call.plan("reference", got), got);
      EXPECT_TRUE(verify::compare(got[i], expected[i], bounds[i]).failure.empty()) << got[i].name;
      *static_cast<std::uint8_t*>(got[i].buffer.view().data) ^= 1;
      EXPECT_FALSE(verify::compare(got[i], expected[i], bounds[i]).failure.empty()) << got[i].name;
    }
  }
}

}  // namespace
}  // namespace tilewise
