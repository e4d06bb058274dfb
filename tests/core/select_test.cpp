// Selection on a table of fakes: cost, features, devices and overrides.
#include "core/select.hpp"

#include <array>
#include <memory>

#include "operations/merge/merge.hpp"
#include "support.hpp"

namespace tilewise {
namespace {

using core::Overrides;
using core::Selection;
using operations::attention::Feature;
using operations::attention::FeatureSet;
using test::expect_invalid;
using test::FakeImplementation;
using test::ScopedEnvironment;

class Select : public testing::Test {
 protected:
  [[nodiscard]] Selection select(const std::string& options = "", Overrides overrides = {}) const {
    const Problem problem = parse_problem("attention_forward seqlen_q=16 head_dim=64 " + options);
    const std::array<const core::Implementation*, 4> table{&fast_, &gpu_, &general_, &twin_};
    return core::select(problem, overrides, {}, table);
  }
  [[nodiscard]] static std::string chosen(const Selection& selection) {
    if (selection.chosen < 0) return "none";
    return std::string(selection.candidates[static_cast<std::size_t>(selection.chosen)].implementation->name());
  }
  [[nodiscard]] static std::string reason(const Selection& selection, std::size_t row) {
    return selection.candidates[row].verdict.reason;
  }

  FakeImplementation fast_{"cpu.fast", FeatureSet{Feature::forward, Feature::f32}, 1.0};
  FakeImplementation gpu_{"cuda.any", FeatureSet::all(), 0.1, DeviceType::cuda};
  FakeImplementation general_{"cpu.general", FeatureSet::all(), 5.0};
  FakeImplementation twin_{"reference", FeatureSet::all(), 5.0};
};

TEST_F(Select, TheCheapestAcceptedWins) {
  const Selection selection = select();
  EXPECT_EQ(chosen(selection), "cpu.fast");
  EXPECT_EQ(selection.candidates.size(), 4u);
  EXPECT_EQ(reason(selection, 1), "runs on cuda, the tensors are on cpu");
  EXPECT_TRUE(selection.candidates[2].verdict.accepted());
}

TEST_F(Select, MissingFeaturesRefuseByName) {
  const Selection selection = select("softcap=3 sink=1");
  EXPECT_EQ(reason(selection, 0), "does not support softcap, sink");
  EXPECT_EQ(chosen(selection), "cpu.general");  // the earlier of two equal estimates
}

TEST_F(Select, ItsOwnReasonRefuses) {
  fast_.reason = "this core has no such instruction";
  EXPECT_EQ(reason(select(), 0), "this core has no such instruction");
  EXPECT_EQ(chosen(select()), "cpu.general");
}

/// What can't be loaded is refused before it is chosen, and nothing is loaded to find out.
TEST_F(Select, AnObstacleRefuses) {
  fast_.obstacle = "no compiler is here";
  EXPECT_EQ(reason(select(), 0), "no compiler is here");
  EXPECT_EQ(chosen(select()), "cpu.general");
  EXPECT_EQ(fast_.loaded + general_.loaded, 0);
}

TEST_F(Select, ADeviceThatIsNotThereRefuses) {
  const std::array<const core::Implementation*, 1> table{&gpu_};
  core::DeviceDescription missing;
  missing.refusal = "cuda:7: must be one of the 2 CUDA devices here";
  const Problem problem = parse_problem("attention_forward seqlen_q=16 head_dim=64 device=cuda");
  EXPECT_EQ(reason(core::select(problem, {}, missing, table), 0), missing.refusal);
}

TEST_F(Select, TheDeviceIsWhereTheTensorsAre) {
  EXPECT_EQ(chosen(select("device=cuda")), "cuda.any");
  EXPECT_EQ(chosen(select("device=hip")), "none");
}

TEST_F(Select, ForceAndDisable) {
  EXPECT_EQ(chosen(select("", {"reference", "", "TILEWISE_FORCE"})), "reference");
  EXPECT_EQ(reason(select("", {"reference", "", "TILEWISE_FORCE"}), 0), "TILEWISE_FORCE=reference asks for another");
  EXPECT_EQ(chosen(select("", {"reference, cpu.general", "", "TILEWISE_FORCE"})), "cpu.general");
  EXPECT_EQ(chosen(select("", {"cpu.*", "", "TILEWISE_FORCE"})), "cpu.fast");
  EXPECT_EQ(chosen(select("softcap=3", {"cpu.fast", "", "implementation"})), "none");
  EXPECT_EQ(chosen(select("", {"", "cpu.fast", ""})), "cpu.general");
  EXPECT_EQ(reason(select("", {"", "cpu.fast", ""}), 0), "disabled by TILEWISE_DISABLE=cpu.fast");
  EXPECT_EQ(chosen(select("", {"", " cpu.fast ,cpu.general,", ""})), "reference");
  EXPECT_EQ(chosen(select("", {"", "*", ""})), "none");
  EXPECT_EQ(chosen(select("", {"", "*.*", ""})), "reference");
  EXPECT_EQ(chosen(select("", {"", "c*.f*t,*general", ""})), "reference");
  EXPECT_EQ(chosen(select("", {"cpu.*", "cpu.fast", "TILEWISE_FORCE"})), "cpu.general");
}

TEST_F(Select, UnknownNamesAreErrors) {
  const std::string names = ": must name an implementation: cpu.fast, cuda.any, cpu.general, reference (got 'slow')";
  expect_invalid("TILEWISE_FORCE" + names, [this] { (void)select("", {"slow", "", "TILEWISE_FORCE"}); });
  expect_invalid("implementation" + names, [this] { (void)select("", {"slow", "", "implementation"}); });
  expect_invalid("TILEWISE_DISABLE" + names, [this] { (void)select("", {"", "cpu.fast,slow", ""}); });
}

/// A table of two operations: attention's rows, and merge's on the CPU.
class SelectAmongOperations : public testing::Test {
 protected:
  class FakeMerge final : public operations::merge::Implementation {
   public:
    [[nodiscard]] std::string_view name() const noexcept override { return "cpu.plain"; }
    [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
    [[nodiscard]] operations::merge::FeatureSet supported() const noexcept override {
      return operations::merge::FeatureSet::all();
    }
    [[nodiscard]] core::Verdict judge(const MergeProblem&, const core::DeviceDescription&) const override {
      return core::Verdict::accept(1.0, std::make_unique<test::FakeKernel>("", loaded_, ""));
    }

   private:
    mutable int loaded_ = 0;
  };

  [[nodiscard]] Selection select(std::string_view text, Overrides overrides) const {
    const std::array<const core::Implementation*, 3> table{&fast_, &plain_, &merge_};
    return core::select(parse_problem(text), overrides, {}, table);
  }
  static constexpr std::string_view kMerge = "merge seqlen_q=4 head_dim_v=8";
  static constexpr std::string_view kAttention = "attention_forward seqlen_q=4 head_dim=8";

  FakeImplementation fast_{"cpu.fast", FeatureSet::all(), 1.0}, plain_{"cpu.plain", FeatureSet::all(), 2.0};
  FakeMerge merge_;
};

TEST_F(SelectAmongOperations, EachSeesItsOwnRows) {
  EXPECT_EQ(select(kMerge, {}).candidates.size(), 1u);
  EXPECT_EQ(select(kAttention, {}).candidates.size(), 2u);
}

TEST_F(SelectAmongOperations, TheEnvironmentForcesThoseOperationsWhoseRowsItNames) {
  EXPECT_EQ(select(kMerge, {"cpu.fast", "", core::kForceVariable}).chosen, 0);
  EXPECT_EQ(select(kAttention, {"cpu.plain", "", core::kForceVariable}).chosen, 1);
  EXPECT_EQ(select(kMerge, {"cpu.plain", "cpu.plain", core::kForceVariable}).chosen, -1);
  EXPECT_EQ(select(kMerge, {"", "cpu.fast", core::kForceVariable}).chosen, 0);
}

TEST_F(SelectAmongOperations, ACallMustNameARowOfItsOperation) {
  expect_invalid("implementation: must name an implementation of merge: cpu.plain (got 'cpu.fast')",
                 [this] { (void)select(kMerge, {"cpu.fast", "", "implementation"}); });
  expect_invalid("TILEWISE_FORCE: must name an implementation: cpu.fast, cpu.plain (got 'slow')",
                 [this] { (void)select(kMerge, {"slow", "", core::kForceVariable}); });
}

/// The same words from both places are different wishes, also to what is remembered.
TEST(Overrides, OfTheEnvironmentAndOfACallAreKeptApart) {
  const AnyProblem problem = parse_problem("merge seqlen_q=4 head_dim_v=8");
  {
    const ScopedEnvironment force("TILEWISE_FORCE", "cpu.avx2");
    EXPECT_EQ(plan(problem).implementation(), "cpu.generic");
  }
  try {
    (void)plan(problem, {"cpu.avx2"});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    const std::string_view words = error.what();
    EXPECT_TRUE(words.starts_with("implementation: must name an implementation of merge: ")) << words;
    EXPECT_TRUE(words.ends_with(" (got 'cpu.avx2')")) << words;
  }
}

TEST(Overrides, ComeFromTheEnvironmentUnlessTheCallNamesOne) {
  const ScopedEnvironment force("TILEWISE_FORCE", "reference"), disable("TILEWISE_DISABLE", "cpu.*");
  EXPECT_EQ(core::overrides_of({}), (Overrides{"reference", "cpu.*", "TILEWISE_FORCE"}));
  const SelectOptions named{"cpu.generic"};
  EXPECT_EQ(core::overrides_of(named), (Overrides{"cpu.generic", "", "implementation"}));
}

}  // namespace
}  // namespace tilewise
