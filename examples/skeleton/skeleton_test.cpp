// The skeleton against the reference over random problems of the features it declares, and its
// refusals. A new implementation's test looks like this one.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <span>

#include "backends/reference/reference_backend.hpp"
#include "operations/attention/attention.hpp"
#include "skeleton_backend.hpp"
#include "tilewise/attention.hpp"
#include "verify/verify.hpp"

// The library's own table is src/backends/table.cpp. This program brings another, so that the
// skeleton need not stand in the library.
std::span<const tilewise::core::Implementation* const> tilewise::core::implementation_table() {
  static const std::array<const Implementation*, 2> table = {&examples::skeleton_implementation(),
                                                             &backends::reference_implementation()};
  return table;
}

namespace tilewise {
namespace {

TEST(Skeleton, AgreesWithTheReference) {
  const operations::attention::FeatureSet supported =
      operations::attention::features_of(examples::skeleton_implementation());
  int passed = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Problem problem = verify::random_problem(seed, {.features = supported, .max_flops = 1e6});
    const verify::Report report = verify::check_implementation(problem, "example.skeleton", seed);
    EXPECT_NE(report.status, verify::Status::failed) << report.to_string();
    if (report.status == verify::Status::passed) ++passed;
    if (report.status == verify::Status::refused) {
      EXPECT_GT(problem.head_dim, 256) << report.to_string();
    }
  }
  EXPECT_GT(passed, 150);
}

TEST(Skeleton, IsChosenWhereItIsCheaper) {
  const Problem problem = parse_problem("attention_forward seqlen_q=8 head_dim=16 mask=causal");
  EXPECT_EQ(plan(problem).implementation(), "example.skeleton");
}

TEST(Skeleton, RefusesWhatItDoesNotHonour) {
  const auto reason = [](const char* text) {
    const Explanation explanation = explain(parse_problem(text));
    EXPECT_FALSE(explanation.rows.front().accepted);
    EXPECT_TRUE(explanation.rows.back().chosen);  // the reference stands in
    return explanation.rows.front().reason;
  };
  EXPECT_EQ(reason("attention_forward seqlen_q=8 head_dim=16 softcap=2 dtype=bf16"), "does not support bf16, softcap");
  EXPECT_EQ(reason("attention_forward seqlen_q=8 head_dim=300"), "head_dim must be <= 256 (got 300)");
}

}  // namespace
}  // namespace tilewise
