// Selection on a table of fakes: cost, features, devices and overrides.
#include "core/select.hpp"

#include <array>

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
    return core::select(problem, overrides, table);
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
  EXPECT_TRUE(selection.candidates[2].verdict.accepted);
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

TEST(Overrides, ComeFromTheEnvironmentUnlessTheCallNamesOne) {
  const ScopedEnvironment force("TILEWISE_FORCE", "reference"), disable("TILEWISE_DISABLE", "cpu.*");
  EXPECT_EQ(core::overrides_of({}), (Overrides{"reference", "cpu.*", "TILEWISE_FORCE"}));
  const SelectOptions named{"cpu.generic"};
  EXPECT_EQ(core::overrides_of(named), (Overrides{"cpu.generic", "", "implementation"}));
}

}  // namespace
}  // namespace tilewise
