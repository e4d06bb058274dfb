// Random problems on every row of the KV cache step against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "../../support/kv_cache_step.hpp"
#include "verify/verifier.hpp"
#include "verify/verify.hpp"

namespace tilewise {
namespace {

using operations::kv_cache::Feature, operations::kv_cache::FeatureSet;

class KvCacheRandom : public testing::TestWithParam<std::string> {
 protected:
  void check(FeatureSet without, std::uint64_t first, int count) {
    if (const char* percent = std::getenv("TILEWISE_TEST_PERCENT"))
      count = std::max(1, static_cast<int>(count * std::strtod(percent, nullptr) / 100));
    constexpr const KvCacheProblem* kTag = nullptr;
    const verify::Verifier& verifier = verify::verifier_of(operation_of(kTag));
    const core::Implementation* row = core::find_row(core::implementation_table(), operation_of(kTag), GetParam());
    ASSERT_NE(row, nullptr);
    const verify::Limits limits{row->supported_features() & FeatureSet::all().minus(without).bits(), 5e5};
    int failures = 0, passed = 0;
    for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(count) && failures < 5; ++seed) {
      const verify::Report report =
          verify::check_implementation(verifier.random_problem(seed, limits), GetParam(), seed);
      if (report.status == verify::Status::refused) GTEST_SKIP() << report.message;  // the processor lacks it
      if (report.status == verify::Status::passed) {
        ++passed;
        continue;
      }
      ++failures;
      ADD_FAILURE() << report.to_string();
    }
    EXPECT_GT(passed, 0);
  }
};

TEST_P(KvCacheRandom, Attends) { check({Feature::slots}, 100000, 150); }
TEST_P(KvCacheRandom, AppendsAlone) { check({Feature::attend}, 200000, 80); }

INSTANTIATE_TEST_SUITE_P(Rows, KvCacheRandom, testing::ValuesIn(test::kv_cache_rows()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace tilewise
