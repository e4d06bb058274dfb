// Selected keys on the way to a GPU's kernels: a block for each query and key head, which problems share kernels, and
// what is refused.
#include <algorithm>
#include <string>
#include <variant>

#include "backends/portable/attention/lowering.hpp"
#include "backends/portable/attention/parameters.hpp"
#include "backends/portable/kv_cache/lowering.hpp"
#include "core/message.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using core::concat;

constexpr std::string_view kSelectedForward =
    "attention_forward dtype=bf16 seqlen_q=40 seqlen_k=9000 head_dim=128 top_k=512 ";
constexpr std::string_view kStep =
    "kv_cache_attention dtype=bf16 batch_size=40 seqlen_q=2 num_heads_q=32 num_heads_k=8 head_dim=128 page_size=16 "
    "num_pages=4096 max_pages_per_seq=512 cache_seqlens=1 append=1 top_k=512";

Outcome step_lowered(std::string_view architecture, std::string_view text) {
  const DeviceType device = device_of(architecture).device.type;
  const KvCacheProblem problem = parse_problem(concat(text, " device=", to_string(device)));
  return lower(problem, device_of(architecture), family_of(architecture));
}
std::string refusal_of(std::string_view architecture, std::string_view text) {
  return lower(problem_for(architecture, text), device_of(architecture), family_of(architecture)).refusal;
}

TEST(SelectedLowering, ABlockHasHeadsOfOneQuery) {
  for (const std::string_view architecture : kMachines) {
    const gpu::Lowering few =
        lowered(architecture, concat(kSelectedForward, "batch_size=9 num_heads_q=8 num_heads_k=4"));
    EXPECT_EQ(few.launches()[0]->grid.count(), 40U * 4 * 9) << architecture;
    const gpu::Lowering many =
        lowered(architecture, concat(kSelectedForward, "batch_size=9 num_heads_q=512 num_heads_k=1"));
    EXPECT_GE(many.launches()[0]->grid.count(), 40U * 2 * 9) << architecture;
    EXPECT_NE(many.schedule.find("keys selected"), std::string::npos) << many.schedule;
  }
}

/// What the mask and a window leave is part of the selection.
TEST(SelectedLowering, MasksShareKernels) {
  for (const std::string_view architecture : kMachines) {
    const std::string heads = concat(kSelectedForward, "batch_size=9 num_heads_q=8 num_heads_k=4");
    const gpu::Lowering plain = lowered(architecture, heads);
    for (const char* options : {" mask=causal", " window_left=90", " key_indices_per_head=1", " seqlen_q=900"}) {
      const std::string text = std::string(options).starts_with(" seqlen_q")
                                   ? "attention_forward dtype=bf16 seqlen_q=900 seqlen_k=9000 head_dim=128 top_k=512 "
                                     "batch_size=9 num_heads_q=8 num_heads_k=4"
                                   : heads + options;
      EXPECT_EQ(lowered(architecture, text).launches()[0]->key, plain.launches()[0]->key) << architecture << options;
    }
  }
}

/// Any tile may have a new key, so that no block appends its own.
TEST(SelectedLowering, NewKeysComeFirst) {
  for (const std::string_view architecture : kMachines) {
    const Outcome outcome = step_lowered(architecture, kStep);
    ASSERT_EQ(outcome.refusal, "") << architecture;
    ASSERT_EQ(outcome.lowering.launches().size(), 2U) << architecture;
    EXPECT_EQ(outcome.lowering.launches()[0]->key.body->name, "append_kv");
    EXPECT_EQ(outcome.lowering.launches()[1]->grid.count(), 40U * 2 * 8);
  }
}

constexpr std::string_view kSelectedBackward =
    "attention_backward dtype=bf16 batch_size=9 seqlen_q=40 seqlen_k=9000 num_heads_k=4 head_dim=128 top_k=512 ";

/// A run of a query's indices for each block of dk and dv, whose sums have a row for each key: cleared before.
TEST(SelectedLowering, QueriesAddToTheirKeys) {
  for (const std::string_view architecture : kMachines) {
    const gpu::Lowering lowering = lowered(architecture, concat(kSelectedBackward, "num_heads_q=256"));
    const gpu::Launch* const dkdv = find_launch<BwdDkdv>(lowering);
    const gpu::Launch* const dq = find_launch<BwdDq>(lowering);
    ASSERT_TRUE(dkdv != nullptr && dq != nullptr && find_launch<BwdConvertSelected>(lowering) != nullptr);
    EXPECT_EQ(dkdv->grid.count() % (40U * 4 * 9), 0U) << architecture;
    EXPECT_EQ(dq->grid.count() % (40U * 4 * 9), 0U) << architecture;
    for (const std::string_view part : {kSelectedDk, kSelectedDv}) {
      ASSERT_NE(lowering.part(part), nullptr) << architecture << part;
      EXPECT_EQ(lowering.part(part)->bytes, 9U * 9000 * 4 * 128 * sizeof(float)) << architecture << part;
    }
    const auto clears = std::ranges::count_if(
        lowering.steps, [](const gpu::Step& step) { return std::holds_alternative<gpu::Clear>(step); });
    EXPECT_EQ(clears, 2) << architecture;
    EXPECT_NE(lowering.schedule.find("keys selected"), std::string::npos) << lowering.schedule;
    const gpu::Lowering packed =
        lowered(architecture,
                "attention_backward dtype=bf16 layout=thd batch_size=9 max_seqlen_q=40 max_seqlen_k=9000 "
                "total_q=90 total_k=20000 num_heads_q=4 num_heads_k=4 head_dim=64 top_k=512 dk=0 dq=0");
    EXPECT_EQ(packed.part(kSelectedDv)->bytes, 20000U * 4 * 64 * sizeof(float)) << architecture;
    EXPECT_EQ(packed.part(kSelectedDk), nullptr) << architecture;
  }
}

/// Few heads of a key have smaller tiles than many; the mask changes no kernel.
TEST(SelectedLowering, GradientsShareKernels) {
  for (const std::string_view architecture : kMachines) {
    const gpu::Lowering plain = lowered(architecture, concat(kSelectedBackward, "num_heads_q=256"));
    for (const char* options : {" mask=causal", " window_left=90", " key_indices_per_head=1", " dlse=1"}) {
      const gpu::Lowering other = lowered(architecture, concat(kSelectedBackward, "num_heads_q=256", options));
      EXPECT_EQ(find_launch<BwdDkdv>(other)->key, find_launch<BwdDkdv>(plain)->key) << architecture << options;
      EXPECT_EQ(find_launch<BwdDq>(other)->key, find_launch<BwdDq>(plain)->key) << architecture << options;
    }
    const gpu::Lowering few = lowered(architecture, concat(kSelectedBackward, "num_heads_q=4"));
    EXPECT_LT(find_launch<BwdDq>(few)->key.threads(), find_launch<BwdDq>(plain)->key.threads()) << architecture;
  }
}

TEST(SelectedLowering, RefusesByName) {
  for (const std::string_view architecture : kMachines) {
    const std::string backward = "attention_backward dtype=bf16 seqlen_q=9 seqlen_k=9 head_dim=64 top_k=4";
    EXPECT_EQ(refusal_of(architecture, backward + " bias=f32[1,h,q,k] dbias=1"),
              "dbias must not be wanted with key_indices, of which the patches that make it know nothing");
    EXPECT_EQ(refusal_of(architecture, backward + " score_mod=score+table0[h] tables=f32[1] dtables=1"),
              "dtables must not be wanted with key_indices, of which the patches that make them know nothing");
    EXPECT_EQ(refusal_of(architecture, backward + " deterministic=1"),
              "dk and dv of key_indices must not be deterministic, since the queries that select a key add to its sums "
              "in any order");
    EXPECT_EQ(refusal_of(architecture, backward + " batch_invariant=1 dk=0"),
              "dk and dv of key_indices must not be batch_invariant, since the queries that select a key add to its "
              "sums in any order");
    EXPECT_EQ(refusal_of(architecture, backward + " deterministic=1 batch_invariant=1 dk=0 dv=0"), "");
    EXPECT_EQ(
        refusal_of(architecture, "attention_forward dtype=bf16 seqlen_q=9 seqlen_k=9 head_dim=64 top_k=536870913"),
        "key_indices: top_k must be <= 2^29 (got 536870913)");
    EXPECT_EQ(
        step_lowered(architecture, "kv_cache_attention dtype=bf16 seqlen_q=1 head_dim=64 capacity=90 top_k=536870913")
            .refusal,
        "key_indices: top_k must be <= 2^29 (got 536870913)");
  }
}

}  // namespace
}  // namespace tilewise::backends::portable
