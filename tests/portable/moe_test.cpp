// Expert layers on the way to a GPU's kernels: their launches, tiles and workspace, and that the tables of pointers
// know every pointer.
#include <set>

#include "backends/portable/moe/kernels.hpp"
#include "backends/portable/moe/lowering.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using gpu::ParameterField;

template <typename Visit>
void for_each_expert_kernel(Visit&& visit) {
  visit.template operator()<ExpertSortKernel>();
  visit.template operator()<ExpertUpKernel>();
  visit.template operator()<ExpertQuantizeKernel>();
  visit.template operator()<ExpertRowsKernel>();
  visit.template operator()<ExpertNormKernel>();
  visit.template operator()<ExpertCombineKernel>();
  visit.template operator()<ExpertDwKernel>();
  visit.template operator()<ExpertDbiasKernel>();
  visit.template operator()<ExpertDweightsKernel>();
}

Outcome expert_outcome(std::string_view architecture, std::string_view text) {
  const MoeProblem problem =
      parse_problem(core::concat(text, " device=", to_string(device_of(architecture).device.type)));
  return Portable<operations::Moe>::lower(problem, device_of(architecture), family_of(architecture));
}

gpu::Lowering expert_lowered(std::string_view architecture, std::string_view text) {
  Outcome outcome = expert_outcome(architecture, text);
  EXPECT_EQ(outcome.refusal, "") << text;
  return std::move(outcome.lowering);
}

std::vector<std::string_view> listed_names_of(const gpu::Lowering& lowering) {
  std::vector<std::string_view> names;
  for (const gpu::Launch* launch : lowering.launches()) names.push_back(launch->key.body->name);
  return names;
}

TEST(ExpertParameters, CoverEachBlock) {
  for_each_expert_kernel([]<typename Kernel> {
    std::size_t end = 0;
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.offset, end) << Kernel::kName << "." << field.name;
      end = field.offset + field.size;
    }
    EXPECT_EQ(end, sizeof(typename Kernel::Params)) << Kernel::kName;
  });
}

TEST(ExpertParameters, TheTablesKnowEveryPointer) {
  for_each_expert_kernel([]<typename Kernel> {
    const typename Kernel::Params params{};
    std::set<std::size_t> known;
    Kernel::for_each_pointer(params, [&known](const gpu::Region&, std::size_t offset) { known.insert(offset); });
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.is_pointer(), known.contains(field.offset)) << Kernel::kName << "." << field.name;
    }
  });
}

TEST(ExpertLowering, LaunchesWhatIsAskedFor) {
  const std::string sizes = "dtype=bf16 tokens=64 hidden=256 intermediate=128 num_experts=8 top_k=2";
  using Names = std::vector<std::string_view>;
  EXPECT_EQ(listed_names_of(expert_lowered("gfx942", "moe " + sizes)),
            (Names{"expert_sort", "expert_up", "expert_rows", "expert_combine"}));
  EXPECT_EQ(listed_names_of(expert_lowered("sm_80", "moe norm=f32 " + sizes)),
            (Names{"expert_sort", "expert_up", "expert_rows", "expert_norm", "expert_combine"}));
  EXPECT_EQ(listed_names_of(expert_lowered("sm_80", "moe w_format=fp8_row h_format=fp8_row " + sizes)),
            (Names{"expert_sort", "expert_up", "expert_quantize", "expert_rows", "expert_combine"}));
  // The weights' gradient alone wants no gradient of rows of x.
  EXPECT_EQ(listed_names_of(expert_lowered("sm_80", "moe_backward dx=0 dtopk_weights=0 ddown=0 " + sizes)),
            (Names{"expert_sort", "expert_rows", "expert_up", "expert_dw"}));
  EXPECT_EQ(listed_names_of(expert_lowered("sm_80",
                                           "moe_backward dx=0 dtopk_weights=0 ddown=0 dgate_up=0 down_bias=f32 "
                                           "ddown_bias=1 " +
                                               sizes)),
            (Names{"expert_sort", "expert_dbias"}));
  EXPECT_TRUE(
      expert_lowered("sm_80", "moe dtype=bf16 tokens=0 hidden=8 intermediate=8 num_experts=8 top_k=2").steps.empty());
}

/// Pairs of several chunks are counted first.
TEST(ExpertLowering, ManyPairsAreSortedInTwoLaunches) {
  const std::string sizes = " dtype=bf16 hidden=256 intermediate=128 num_experts=8 top_k=2";
  const gpu::Lowering one = expert_lowered("sm_80", "moe tokens=512" + sizes);
  const gpu::Lowering two = expert_lowered("sm_80", "moe tokens=513" + sizes);
  EXPECT_EQ(one.launches().size() + 1, two.launches().size());
  EXPECT_EQ(two.launches()[0]->grid, gpu::Extent3{2});
  ASSERT_NE(two.part("chunk_counts"), nullptr);
  EXPECT_EQ(two.part("chunk_counts")->bytes, 2u * 8u * sizeof(std::int32_t));
}

/// Of few tokens tiles are low, and there are no more of them than pairs.
TEST(ExpertLowering, FewTokensTakeLowTiles) {
  for (const std::string_view architecture : kMachines) {
    const std::string sizes = " dtype=bf16 hidden=2048 intermediate=768 num_experts=128 top_k=8";
    const gpu::Lowering few = expert_lowered(architecture, "moe tokens=1" + sizes);
    const auto* launch = find_launch<ExpertUpKernel>(few);
    ASSERT_NE(launch, nullptr);
    const auto config = gpu::config_of<ExpertUpKernel>(launch->key);
    EXPECT_LE(config.block_m, 32);
    EXPECT_EQ(launch->grid.x,
              8u * ((768u + static_cast<unsigned>(config.values()) - 1) / static_cast<unsigned>(config.values())));
    const gpu::Lowering many = expert_lowered(architecture, "moe tokens=16384" + sizes);
    EXPECT_GE(gpu::config_of<ExpertUpKernel>(find_launch<ExpertUpKernel>(many)->key).block_m, 64);
  }
}

/// The workspace follows from the problem: two rows of each pair, and what says whose they are.
TEST(ExpertLowering, TheWorkspaceIsBounded) {
  const gpu::Lowering lowering =
      expert_lowered("sm_80", "moe dtype=bf16 tokens=512 hidden=256 intermediate=128 num_experts=8 top_k=2");
  EXPECT_EQ(lowering.part("h")->bytes, 1024u * 128 * 2);
  EXPECT_EQ(lowering.part("parts")->bytes, 1024u * 256 * 2);
  EXPECT_LE(lowering.workspace_bytes, 1024u * (128 + 256) * 2 + 3 * 1024 * 4 + 10 * 256);
}

/// Offsets of weights are of 64 bits, and sizes beyond them refused.
TEST(ExpertLowering, LargeLayers) {
  const gpu::Lowering lowering =
      expert_lowered("sm_80", "moe dtype=bf16 tokens=16 hidden=65536 intermediate=65536 num_experts=1024 top_k=2");
  const auto params = params_of<ExpertUpKernel>(*find_launch<ExpertUpKernel>(lowering));
  EXPECT_EQ(params.b.lines * params.b.length, std::int64_t{1} << 33);
  EXPECT_EQ(
      expert_outcome("sm_80", "moe dtype=bf16 tokens=1000000000 hidden=8 intermediate=8 num_experts=8 top_k=8").refusal,
      "tokens * top_k must be <= 2^28 (got 1000000000 * 8)");
  EXPECT_EQ(
      expert_outcome("sm_80", "moe dtype=bf16 tokens=1 hidden=33554432 intermediate=8 num_experts=8 top_k=8").refusal,
      "hidden must be <= 2^24 (got 33554432)");
}

}  // namespace
}  // namespace tilewise::backends::portable
