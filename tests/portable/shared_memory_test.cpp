// Shared memory of every block that a schedule chooses fits the device, or the problem is refused with the reason.
#include <vector>

#include "jit/target.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using core::concat;

struct Block {
  std::string_view architecture;
  std::size_t kilobytes;
};
/// Most that a block may have, as the vendors' manuals say.
constexpr Block kLargestBlocks[] = {{"sm_80", 163},  {"sm_86", 99},   {"sm_89", 99},   {"sm_90a", 227},
                                    {"sm_100", 227}, {"sm_120", 99},  {"gfx90a", 64},  {"gfx942", 64},
                                    {"gfx950", 160}, {"gfx1100", 64}, {"gfx1101", 64}, {"gfx1102", 64},
                                    {"gfx1151", 64}, {"gfx1201", 64}, {"gfx1250", 320}};

constexpr std::string_view kEveryGradient = " bias=f32[b,h,q,k] dbias=1 sink=1 dsink=1";

void expect_fits(const Block& block, const std::string& text) {
  const std::string words = concat(block.architecture, ": ", text);
  const gpu::Lowering lowering = lowered(block.architecture, text);
  for (const gpu::Launch* launch : lowering.launches()) {
    const gpu::KernelKey& key = launch->key;
    EXPECT_LE(key.shared_bytes(), block.kilobytes << 10) << words << ": " << key.body->name;
    EXPECT_LE(key.dynamic_shared_bytes(), key.shared_bytes()) << words;
    EXPECT_GT(launch->threads(), 0U) << words;
    EXPECT_LE(launch->threads(), 1024U) << words;
    EXPECT_EQ(launch->threads() % gpu::lanes(key.family), 0U) << words;
  }
}

TEST(SharedMemory, FitsForEveryHeadDim) {
  for (const Block& block : kLargestBlocks) {
    ASSERT_EQ(traits_of(block.architecture).shared_bytes, block.kilobytes << 10) << block.architecture;
    for (int dim = 1; dim <= 256; ++dim) {
      for (const int queries : {1, 16, 4096}) {
        const std::string sizes =
            concat(" dtype=bf16 seqlen_q=", queries, " seqlen_k=4096 num_heads_q=8 head_dim=", dim);
        expect_fits(block, "attention_forward" + sizes);
        expect_fits(block, concat("attention_backward", sizes, kEveryGradient));
      }
    }
  }
}

TEST(SharedMemory, FitsForUnequalHeadDims) {
  for (const Block& block : kLargestBlocks) {
    for (const std::string_view dims : {"head_dim=256 head_dim_v=1", "head_dim=1 head_dim_v=256",
                                        "head_dim=192 head_dim_v=128", "head_dim=72 head_dim_v=200"}) {
      const std::string sizes = concat(" dtype=f16 seqlen_q=2048 ", dims);
      expect_fits(block, "attention_forward" + sizes);
      expect_fits(block, concat("attention_backward", sizes, kEveryGradient));
    }
  }
}

TEST(SharedMemory, TooLittleIsARefusal) {
  core::DeviceDescription device = device_of("sm_80");
  device.shared_bytes = 20 << 10;
  const std::string reason =
      lower(problem_for("sm_80", "attention_forward dtype=bf16 seqlen_q=4096 num_heads_q=8 head_dim=256"), device,
            Family::sm80)
          .refusal;
  EXPECT_TRUE(reason.starts_with("forward needs ")) << reason;
  EXPECT_NE(reason.find(" bytes of shared memory a block, sm_80 has 20480"), std::string::npos) << reason;
}

TEST(SharedMemory, LargeHeadDimsAreRefused) {
  for (const std::string_view architecture : kArchitectures) {
    const Problem problem = problem_for(architecture, "attention_forward dtype=bf16 seqlen_q=64 head_dim=257");
    EXPECT_EQ(outcome(architecture, problem).refusal, "head_dim and head_dim_v must be <= 256 (got 257 and 257)");
  }
}

TEST(Architectures, AreThoseThatKernelsCanBeCompiledFor) {
  for (const std::string& name : jit::known_architectures()) {
    const jit::Target target = jit::parse_target(name);
    const gpu::Architecture* known = gpu::find_architecture(name);
    if (target.kind == jit::TargetKind::host) {
      EXPECT_EQ(known, nullptr);
      continue;
    }
    ASSERT_NE(known, nullptr) << name;
    EXPECT_EQ(gpu::device_of(*known) == DeviceType::cuda, target.kind == jit::TargetKind::cuda) << name;
    const DeviceTraits traits = traits_of(name);
    EXPECT_EQ(traits.architecture, name);
    EXPECT_GT(traits.multiprocessors, 0);
    // From a small integrated GPU to the fastest one of 2025.
    EXPECT_GT(traits.gflops, 1e3) << name;
    EXPECT_LT(traits.gflops, 4e6) << name;
    EXPECT_GT(traits.gigabytes_per_second, 30.0) << name;
  }
  EXPECT_EQ(gpu::find_architecture("sm_75"), nullptr);
}

}  // namespace
}  // namespace tilewise::backends::portable
