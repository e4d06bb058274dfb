// Plans: making, caching, refusing, explaining and logging.
#include "core/plan.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "support.hpp"

namespace tilewise {
namespace {

using core::PlanCache;
using core::PlanState;
using operations::attention::FeatureSet;
using test::expect_error;
using test::expect_invalid;
using test::FakeImplementation;
using test::ScopedEnvironment;

Problem problem_of(std::int64_t seqlen) {
  return parse_problem("attention_forward head_dim=64 seqlen_q=" + std::to_string(seqlen));
}

class PlanCacheTest : public testing::Test {
 protected:
  [[nodiscard]] PlanState make(std::int64_t seqlen, const core::Overrides& overrides = {}) const {
    const std::array<const core::Implementation*, 1> table{&fake_};
    return core::make_plan(problem_of(seqlen), overrides, table);
  }
  FakeImplementation fake_{"fake", FeatureSet::all(), 1.0};
};

TEST_F(PlanCacheTest, TheLeastRecentlyUsedLeaves) {
  PlanCache cache(2);
  EXPECT_EQ(cache.find(problem_of(1), {}), nullptr);
  const PlanState one = cache.insert(make(1), {}), two = cache.insert(make(2), {});
  EXPECT_EQ(cache.find(problem_of(1), {}), one);  // now 2 is the oldest
  const PlanState three = cache.insert(make(3), {});
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(cache.find(problem_of(2), {}), nullptr);
  EXPECT_EQ(cache.find(problem_of(1), {}), one);
  EXPECT_EQ(cache.find(problem_of(3), {}), three);
}

TEST_F(PlanCacheTest, OverridesArePartOfTheKey) {
  PlanCache cache(8);
  const core::Overrides forced{"fake", "", "TILEWISE_FORCE"};
  const PlanState free = cache.insert(make(1), {}), other = cache.insert(make(1, forced), forced);
  EXPECT_NE(free, other);
  EXPECT_EQ(cache.find(problem_of(1), {}), free);
  EXPECT_EQ(cache.find(problem_of(1), forced), other);
  EXPECT_EQ(cache.find(problem_of(1), {"", "fake", ""}), nullptr);
}

TEST_F(PlanCacheTest, TheFirstOfTwoEqualPlansStays) {
  PlanCache cache(8);
  const PlanState first = cache.insert(make(1), {});
  EXPECT_EQ(cache.insert(make(1), {}), first);
  EXPECT_EQ(cache.size(), 1u);
}

TEST_F(PlanCacheTest, ManyThreadsAtOnce) {
  PlanCache cache(5);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const std::int64_t seqlen = (i * 7 + t) % 9;
        PlanState plan = cache.find(problem_of(seqlen), {});
        if (!plan) plan = cache.insert(make(seqlen), {});
        EXPECT_EQ(plan->problem.get<AttentionProblem>().seqlen_q, seqlen);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(cache.size(), 5u);
}

TEST_F(PlanCacheTest, PlansKnowTheirKernel) {
  const Plan plan(make(3));
  EXPECT_EQ(plan.implementation(), "fake");
  EXPECT_EQ(plan.schedule(), "schedule of fake");
  EXPECT_EQ(plan.workspace_size(), 0u);
  EXPECT_EQ(plan.problem(), problem_of(3));
}

TEST_F(PlanCacheTest, RefusalsAreListed) {
  FakeImplementation picky("picky", FeatureSet{operations::attention::Feature::forward}, 1.0);
  fake_.reason = "not today";
  const std::array<const core::Implementation*, 2> table{&fake_, &picky};
  expect_error(ErrorCode::unsupported,
               "no implementation accepts attention_forward seqlen_q=3 head_dim=64\n"
               "  fake: not today\n  picky: does not support f32",
               [&] { (void)core::make_plan(problem_of(3), {}, table); });
}

TEST_F(PlanCacheTest, RefusalsSayWhatNobodyOnTheDeviceTakes) {
  using operations::attention::Feature;
  FakeImplementation picky("picky", FeatureSet{Feature::forward, Feature::bf16, Feature::f16}, 1.0);
  FakeImplementation elsewhere("elsewhere", FeatureSet::all(), 1.0, DeviceType::cuda);
  const std::array<const core::Implementation*, 2> table{&picky, &elsewhere};
  expect_error(ErrorCode::unsupported,
               "no implementation accepts attention_forward seqlen_q=3 head_dim=64; none on cpu supports f32 (dtypes "
               "that some do: bf16, f16)\n"
               "  picky: does not support f32\n  elsewhere: runs on cuda, the tensors are on cpu",
               [&] { (void)core::make_plan(problem_of(3), {}, table); });
  Problem other = problem_of(3);
  other.dtype = DType::bf16;
  other.softcap = 3.0;
  expect_error(ErrorCode::unsupported,
               "no implementation accepts attention_forward dtype=bf16 seqlen_q=3 head_dim=64 softcap=3; none on cpu "
               "supports softcap\n  picky: does not support softcap\n"
               "  elsewhere: runs on cuda, the tensors are on cpu",
               [&] { (void)core::make_plan(other, {}, table); });
}

TEST(Plan, IsCached) {
  EXPECT_EQ(&plan(problem_of(77)).state(), &plan(problem_of(77)).state());
  EXPECT_NE(&plan(problem_of(77)).state(), &plan(problem_of(78)).state());
  Problem written_otherwise = problem_of(77);
  written_otherwise.alignment = Alignment::top_left;  // no diagonal: nothing to align
  EXPECT_EQ(&plan(written_otherwise).state(), &plan(problem_of(77)).state());
}

TEST(Plan, FollowsTheEnvironmentAndTheCall) {
  EXPECT_EQ(plan(problem_of(79), {"reference"}).implementation(), "reference");
  {
    const ScopedEnvironment force("TILEWISE_FORCE", "reference");
    EXPECT_EQ(plan(problem_of(79)).implementation(), "reference");
  }
  const ScopedEnvironment disable("TILEWISE_DISABLE", "reference,*");
  expect_error(ErrorCode::unsupported, "", [] {
    try {
      (void)plan(problem_of(79));
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("reference: disabled by TILEWISE_DISABLE=reference,*"),
                std::string::npos);
      throw Error(error.code(), "");
    }
  });
  EXPECT_EQ(plan(problem_of(79), {"reference"}).implementation(), "reference");  // the call stands above
}

TEST(Plan, TheCacheSurvivesAForkUnderLoad) {
  std::atomic<bool> stop = false;
  std::thread other([&] {
    for (std::int64_t i = 0; !stop; ++i) (void)plan(problem_of(i % 50));
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a deadlocked child ends by the signal
      _exit(plan(problem_of(7)).problem() == problem_of(7) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
  stop = true;
  other.join();
}

TEST(Plan, RefusesBadProblems) {
  Problem problem = problem_of(3);
  problem.head_dim = 640;
  expect_invalid("q: head_dim must be <= 576 (got 640)", [&] { (void)plan(problem); });
  expect_invalid("q: head_dim must be <= 576 (got 640)", [&] { (void)explain(problem); });
}

TEST(Plan, OtherDevicesListEveryRefusal) {
  const Problem problem = parse_problem("attention_forward device=cuda head_dim=64 seqlen_q=3");
  try {
    (void)plan(problem);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    for (const core::Implementation* row : core::implementation_table()) {
      EXPECT_NE(std::string(error.what()).find(std::string(row->name()) + ": "), std::string::npos) << error.what();
    }
  }
}

TEST(Plan, LogsEachDecisionOnce) {
  const ScopedEnvironment log("TILEWISE_LOG", "dispatch");
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) (void)plan(problem_of(1234), {"reference"});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("tilewise: attention_forward seqlen_q=1234 head_dim=64 -> reference ("), 0u) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(Plan, UnknownLogWordsAreErrors) {
  const ScopedEnvironment log("TILEWISE_LOG", "everything");
  expect_invalid("TILEWISE_LOG: must be dispatch (got 'everything')", [] { (void)plan(problem_of(1235)); });
}

TEST(Explain, ShowsEveryRow) {
  const Explanation explanation = explain(problem_of(80), {"reference"});
  const auto rows = std::ranges::count_if(core::implementation_table(), [&](const core::Implementation* row) {
    return &row->operation() == &explanation.problem.operation();
  });
  EXPECT_EQ(explanation.rows.size(), static_cast<std::size_t>(rows));
  int chosen = 0;
  for (const ExplainRow& row : explanation.rows) {
    EXPECT_EQ(row.chosen, row.implementation == "reference");
    EXPECT_EQ(row.accepted, row.implementation == "reference");
    EXPECT_FALSE(row.reason.empty());
    chosen += row.chosen;
  }
  EXPECT_EQ(chosen, 1);
}

TEST(Explain, PrintsATable) {
  const Explanation explanation{problem_of(80),
                                {{"cpu.fast", true, true, 12.34, "64x32 tiles"},
                                 {"cuda.any", false, false, 0.0, "runs on cuda, the tensors are on cpu"},
                                 {"reference", true, false, 56789.0, "f64"}}};
  EXPECT_EQ(explanation.to_string(),
            "attention_forward seqlen_q=80 head_dim=64\n"
            "implementation  verdict   estimate  schedule or reason\n"
            "cpu.fast        chosen    12.3 us   64x32 tiles\n"
            "cuda.any        refused   -         runs on cuda, the tensors are on cpu\n"
            "reference       accepted  56.8 ms   f64\n");
}

TEST(Explain, GoesOnWhereNothingAccepts) {
  const Explanation explanation = explain(parse_problem("attention_forward device=hip head_dim=64 seqlen_q=3"));
  for (const ExplainRow& row : explanation.rows) EXPECT_FALSE(row.accepted || row.chosen);
}

}  // namespace
}  // namespace tilewise
