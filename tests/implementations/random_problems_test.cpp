// Generated problems over everything an implementation declares. A failure prints the command
// that repeats it; `tilewise verify` runs longer than a test may.
#include <algorithm>
#include <cstdlib>

#include "../support/random_rows.hpp"
#include "implementation_test.hpp"

namespace tilewise::test {
namespace {

class RandomProblems : public ImplementationTest {
 protected:
  /// Checks `count` problems of one pass, or TILEWISE_TEST_PERCENT of them where that is set.
  void check(operations::attention::Feature other_pass, int count, double max_flops) {
    count = problems_of(count);
    const verify::Filter filter{.features = supported_features().minus({other_pass}), .max_flops = max_flops};
    const std::uint64_t first = seed_base() + (other_pass == operations::attention::Feature::forward ? 50000u : 0u);
    int failures = 0;
    for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(count) && failures < 5; ++seed) {
      const verify::Report report =
          verify::check_implementation(verify::random_problem(seed, filter), GetParam(), seed);
      // Within its declared features an implementation refuses nothing.
      if (report.status == verify::Status::passed) continue;
      ++failures;
      ADD_FAILURE() << report.to_string();
    }
  }
};

TEST_P(RandomProblems, Forward) { check(operations::attention::Feature::backward, 250, 2e6); }
TEST_P(RandomProblems, Backward) { check(operations::attention::Feature::forward, 200, 3e6); }
TEST_P(RandomProblems, LargeForward) { check(operations::attention::Feature::backward, 5, 6e7); }
TEST_P(RandomProblems, LargeBackward) { check(operations::attention::Feature::forward, 5, 1e8); }

TILEWISE_FOR_EVERY_IMPLEMENTATION(RandomProblems);

}  // namespace
}  // namespace tilewise::test
