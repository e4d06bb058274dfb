// Selected keys on the way to a GPU's kernels: a block for each query and key head, which problems share kernels, and
// what is refused.
#include <string>

#include "backends/portable/attention/lowering.hpp"
#include "backends/portable/kv_cache/lowering.hpp"
#include "core/message.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using core::concat;

constexpr std::string_view kForward = "attention_forward dtype=bf16 seqlen_q=40 seqlen_k=9000 head_dim=128 top_k=512 ";
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
    const gpu::Lowering few = lowered(architecture, concat(kForward, "batch_size=9 num_heads_q=8 num_heads_k=4"));
    EXPECT_EQ(few.launches()[0]->grid.count(), 40U * 4 * 9) << architecture;
    const gpu::Lowering many = lowered(architecture, concat(kForward, "batch_size=9 num_heads_q=512 num_heads_k=1"));
    EXPECT_GE(many.launches()[0]->grid.count(), 40U * 2 * 9) << architecture;
    EXPECT_NE(many.schedule.find("keys selected"), std::string::npos) << many.schedule;
  }
}

/// What the mask and a window leave is part of the selection.
TEST(SelectedLowering, MasksShareKernels) {
  for (const std::string_view architecture : kMachines) {
    const std::string heads = concat(kForward, "batch_size=9 num_heads_q=8 num_heads_k=4");
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

TEST(SelectedLowering, RefusesByName) {
  for (const std::string_view architecture : kMachines) {
    EXPECT_EQ(refusal_of(architecture, "attention_backward dtype=bf16 seqlen_q=9 seqlen_k=9 head_dim=64 top_k=4"),
              "key_indices must not be given to the backward pass, of which no kernel gathers keys");
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
