// Random problems on every row of the KV cache step against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "../../support/kv_cache_step.hpp"
#include "../../support/random_rows.hpp"
#include "verify/verifier.hpp"
#include "verify/verify.hpp"

namespace tilewise {
namespace {

using operations::kv_cache::Feature, operations::kv_cache::FeatureSet;

class KvCacheRandom : public testing::TestWithParam<std::string> {
 protected:
  void check(FeatureSet without, std::uint64_t first, int count) {
    count = problems_of(count);
    constexpr const KvCacheProblem* kTag = nullptr;
    const verify::Verifier& verifier = verify::verifier_of(operation_of(kTag));
    const core::Implementation* row = core::find_row(core::implementation_table(), operation_of(kTag), GetParam());
    ASSERT_NE(row, nullptr);
    const verify::Limits limits{.features = row->supported_features() & FeatureSet::all().minus(without).bits(),
                                .max_flops = 5e5};
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

/// What `tilewise verify --operation kv_cache` draws: every feature, and every value of what has but a few.
TEST(KvCacheRandomProblems, ReachEveryOption) {
  constexpr const KvCacheProblem* kTag = nullptr;
  FeatureSet reached;
  std::set<std::string> seen;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    const KvCacheProblem p = verify::verifier_of(operation_of(kTag)).random_problem(seed, {});
    EXPECT_NO_THROW(validate(p)) << to_string(p);
    reached = FeatureSet::from_bits(reached.bits() | operations::kv_cache::required_features(p).bits());
    const auto see = [&seen](std::string_view field, auto value) {
      seen.insert(core::concat(field, "=", static_cast<int>(value)));
    };
    see("call", p.call);
    see("slots", p.slots);
    see("rotary", p.rotary);
    see("sink", p.sink);
    see("alibi_slopes", p.alibi_slopes);
    see("softmax_lse", p.softmax_lse);
    see("rotary_seqlens", p.rotary_seqlens);
    see("odd rotary_offset", p.rotary_offset % 2);
    see("new keys of their own number", p.append && p.seqlen_k_new != p.seqlen_q);
    see("page_size", std::min<std::int64_t>(p.page_size, 2));
  }
  EXPECT_EQ(to_string(FeatureSet::all().minus(reached)), "");
  for (const char* value :
       {"call=0", "call=1", "slots=1", "slots=2", "rotary=1", "rotary=2", "sink=1", "sink=2", "alibi_slopes=1",
        "alibi_slopes=2", "softmax_lse=0", "softmax_lse=1", "rotary_seqlens=1", "odd rotary_offset=1",
        "new keys of their own number=1", "page_size=0", "page_size=1", "page_size=2"}) {
    EXPECT_TRUE(seen.contains(value)) << value;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, KvCacheRandom, testing::ValuesIn(test::kv_cache_rows()), case_of_row);

}  // namespace
}  // namespace tilewise
