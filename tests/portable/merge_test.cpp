// Merge on the way to a GPU's kernels: launches for lists and stacked parts, what they share in the workspace, and that
// the tables of pointers know every pointer.
#include <algorithm>
#include <set>

#include "backends/portable/merge/kernels.hpp"
#include "backends/portable/merge/lowering.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using gpu::ParameterField;

template <typename Visit>
void for_each_merge_kernel(Visit&& visit) {
  visit.template operator()<MergeForward>();
  visit.template operator()<MergeBwdPreprocess>();
  visit.template operator()<MergeBwd>();
  visit.template operator()<MergeBwdDsink>();
}

gpu::Lowering merge_lowered(std::string_view architecture, std::string_view text) {
  const MergeProblem problem =
      parse_problem(core::concat(text, " device=", to_string(device_of(architecture).device.type)));
  Outcome outcome = Portable<operations::Merge>::lower(problem, device_of(architecture), family_of(architecture));
  EXPECT_EQ(outcome.refusal, "") << text;
  return std::move(outcome.lowering);
}

TEST(MergeParameters, CoverEachBlock) {
  for_each_merge_kernel([]<typename Kernel> {
    std::size_t end = 0;
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.offset, end) << Kernel::kName << "." << field.name;
      end = field.offset + field.size;
    }
    EXPECT_EQ(end, sizeof(typename Kernel::Params)) << Kernel::kName;
  });
}

/// A pointer that the table of a full block lacks would be null in every launch.
TEST(MergeParameters, TheTablesKnowEveryPointer) {
  for_each_merge_kernel([]<typename Kernel> {
    typename Kernel::Params params{};
    if constexpr (requires { params.range; }) params.range.num_parts = device::kMostParts;
    std::set<std::size_t> known;
    Kernel::for_each_pointer(params, [&known](const gpu::Region&, std::size_t offset) { known.insert(offset); });
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.is_pointer(), known.contains(field.offset)) << Kernel::kName << "." << field.name;
    }
  });
}

TEST(MergeLowering, ListsGoInSixteens) {
  for (const std::string_view architecture : kMachines) {
    for (const auto& [parts, launches] : {std::pair{1, 1}, {16, 1}, {17, 2}, {33, 3}}) {
      const gpu::Lowering lowering =
          merge_lowered(architecture, core::concat("merge dtype=bf16 seqlen_q=8 head_dim_v=64 sink=f32 parts=", parts));
      const auto all = lowering.launches();
      ASSERT_EQ(all.size(), static_cast<std::size_t>(launches)) << parts;
      EXPECT_EQ(lowering.workspace_bytes > 0, launches > 1);
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto config = gpu::config_of<MergeForward>(all[i]->key);
        EXPECT_EQ(config.resumes, i > 0) << i;
        EXPECT_EQ(config.pauses, i + 1 < all.size()) << i;
        EXPECT_EQ(config.sink, i + 1 == all.size()) << "the sink joins once";
      }
    }
    EXPECT_EQ(merge_lowered(architecture, "merge parts=1000 stacked=1 seqlen_q=8 head_dim_v=64").launches().size(), 1u);
  }
}

TEST(MergeLowering, TheBackwardPassLaunchesWhatIsWanted) {
  const auto names = [](std::string_view options) {
    const gpu::Lowering lowering =
        merge_lowered("sm_90a", core::concat("merge_backward parts=20 seqlen_q=8 head_dim_v=64 sink=f32 ", options));
    std::string text;
    for (const gpu::Launch* launch : lowering.launches()) text += core::concat(launch->key.body->name, " ");
    return text;
  };
  EXPECT_EQ(names(""), "merge_bwd_preprocess merge_bwd_preprocess merge_bwd merge_bwd ");
  EXPECT_EQ(names("dsink=1"), "merge_bwd_preprocess merge_bwd_preprocess merge_bwd merge_bwd merge_bwd_dsink ");
  EXPECT_EQ(names("douts=0 dlses=0 dsink=1"), "merge_bwd_preprocess merge_bwd_preprocess merge_bwd_dsink ");
}

/// What one kernel writes the next one reads at the same place.
TEST(MergeLowering, LaunchesShareTheirWorkspace) {
  const gpu::Lowering lowering =
      merge_lowered("gfx942", "merge_backward parts=20 batch_size=2 seqlen_q=8 num_heads_q=3 head_dim_v=64");
  ASSERT_NE(lowering.part("dots"), nullptr);
  EXPECT_EQ(lowering.part("dots")->bytes, 20 * 48 * sizeof(float));
  const auto launches = lowering.launches();
  const auto offset_of = [](const gpu::Launch& launch, std::size_t field) {
    for (const gpu::WorkspacePointer& pointer : launch.workspace)
      if (pointer.param_offset == field) return static_cast<std::int64_t>(pointer.offset);
    return std::int64_t{-1};
  };
  using Preprocess = device::MergeBwdPreprocessParams;
  const std::int64_t first = offset_of(*launches[0], offsetof(Preprocess, lse_accum));
  const std::int64_t second = offset_of(*launches[1], offsetof(Preprocess, lse_accum));
  EXPECT_GE(first, 0);
  EXPECT_NE(first, second);
  EXPECT_EQ(offset_of(*launches[1], offsetof(Preprocess, lse_before)), first);
  EXPECT_EQ(offset_of(*launches[2], offsetof(device::MergeBwdParams, lse_accum)), second);
  EXPECT_EQ(offset_of(*launches[3], offsetof(device::MergeBwdParams, lse_accum)), second);
}

/// Whoever fills in addresses by name must not take the first parts for the later ones.
TEST(MergeLowering, PartsAreNamedByTheirPlaceInTheCall) {
  const auto names = [](std::string_view text) {
    std::set<std::string> all;
    const gpu::Lowering lowering = merge_lowered("sm_90a", text);
    for (const gpu::Launch* launch : lowering.launches()) {
      launch->key.body->for_each_pointer(launch->params.data(),
                                         [&all](const gpu::Region& region, std::size_t) { all.emplace(region.name); });
    }
    return all;
  };
  const std::set<std::string> listed = names("merge parts=20 seqlen_q=8 head_dim_v=64");
  EXPECT_TRUE(listed.contains("outs[0]") && listed.contains("lses[19]") && !listed.contains("outs[20]"));
  const std::set<std::string> stacked = names("merge parts=20 stacked=1 seqlen_q=8 head_dim_v=64");
  EXPECT_TRUE(stacked.contains("outs") && stacked.contains("lses") && !stacked.contains("outs[0]"));
}

TEST(MergeLowering, TooManyRowsAreRefused) {
  const MergeProblem problem = parse_problem("merge device=cuda batch_size=70000 seqlen_q=40000 head_dim_v=1");
  EXPECT_EQ(Portable<operations::Merge>::lower(problem, device_of("sm_90a"), family_of("sm_90a")).refusal,
            "batch_size * seqlen_q * num_heads_q must be <= 2147483647 (got 2800000000)");
}

TEST(MergeLowering, ContiguousCallsHaveStrides) {
  const PortableRow<operations::Merge> row("cuda.sm80", gpu::Family::sm80, nullptr);
  const MergeProblem problem =
      parse_problem("merge_backward device=cuda parts=3 stacked=1 batch_size=2 seqlen_q=4 num_heads_q=5 head_dim_v=8");
  const auto call = std::static_pointer_cast<const operations::merge::MergeParams>(row.contiguous_call(problem).params);
  EXPECT_EQ(call->stacked.out, 2 * 4 * 5 * 8);
  EXPECT_EQ(call->stacked.dlse, 2 * 4 * 5);
  EXPECT_EQ(call->dout.seq_stride, 5 * 8);
  ASSERT_EQ(call->parts.size(), 3u);
  EXPECT_EQ(call->parts[2].lse.head_stride, 4);
}

}  // namespace
}  // namespace tilewise::backends::portable
