// Generated sources: stable text, and another text for every other key.
#include <cstring>
#include <set>

#include "jit/kernel_source.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using core::concat;

constexpr std::string_view kConfigLine = "  c.";

/// Without the line that holds the configuration.
std::string frame(const jit::KernelSource& source) {
  std::string text = source.stub;
  const std::size_t start = text.find(kConfigLine);
  EXPECT_NE(start, std::string::npos);
  return text.erase(start, text.find('\n', start) + 1 - start);
}

gpu::Launch forward_on(std::string_view architecture) {
  return *lowered(architecture, "attention_forward dtype=bf16 seqlen_q=4096 num_heads_q=64 head_dim=128").launches()[0];
}

constexpr std::string_view kConfig =
    "inline constexpr ForwardConfig kConfig = [] {\n"
    "  ForwardConfig c;\n"
    "  return c;\n"
    "}();\n"
    "using Kernel = Forward<Ops, kConfig>;\n";

TEST(Source, OfNvidia) {
  const gpu::Launch launch = forward_on("sm_90a");
  EXPECT_EQ(frame(gpu::make_source(launch.key, false)),
            concat("// Generated: one kernel, specialised on its configuration.\n"
                   "#include \"device/tile/machine_sm80.h\"\n"
                   "#include \"device/tile/ops_sm80.h\"\n"
                   "#include \"device/attention/forward.h\"\n"
                   "namespace tilewise::device {\n"
                   "using Ops = Sm80Ops<Sm80Machine>;\n",
                   kConfig, "static_assert(sizeof(Kernel::Shared) == ", launch.key.shared_bytes(),
                   ", \"the host's arithmetic differs\");\n"
                   "}  // namespace tilewise::device\n"
                   "extern \"C\" __global__ void __launch_bounds__(",
                   launch.threads(),
                   ") tilewise_forward(const __grid_constant__ tilewise::device::ForwardParams params) {\n"
                   "  extern __shared__ __align__(1024) unsigned char memory[];\n"
                   "  auto& shared = *reinterpret_cast<tilewise::device::Kernel::Shared*>(memory);\n"
                   "  tilewise::device::Kernel::run(params, shared);\n"
                   "}\n"));
}

TEST(Source, OfAmd) {
  const gpu::Launch launch = forward_on("gfx942");
  EXPECT_EQ(frame(gpu::make_source(launch.key, false)),
            concat("// Generated: one kernel, specialised on its configuration.\n"
                   "#pragma clang force_cuda_host_device begin\n"
                   "#include \"device/tile/machine_cdna.h\"\n"
                   "#include \"device/tile/ops_cdna.h\"\n"
                   "#include \"device/attention/forward.h\"\n"
                   "namespace tilewise::device {\n"
                   "using Ops = CdnaOps<CdnaMachine>;\n",
                   kConfig, "static_assert(sizeof(Kernel::Shared) == ", launch.key.shared_bytes(),
                   ", \"the host's arithmetic differs\");\n"
                   "}  // namespace tilewise::device\n"
                   "#pragma clang force_cuda_host_device end\n"
                   "extern \"C\" __attribute__((global, amdgpu_flat_work_group_size(",
                   launch.threads(), ", ", launch.threads(),
                   "))) void tilewise_forward(const tilewise::device::ForwardParams params) {\n"
                   "  static __attribute__((shared)) tilewise::device::Kernel::Shared shared;\n"
                   "  tilewise::device::Kernel::run(params, shared);\n"
                   "}\n"));
}

gpu::KernelKey key_with(std::string_view functions, std::string_view pass = "attention_forward") {
  const std::string text =
      concat(pass, " dtype=bf16 seqlen_q=4096 seqlen_k=512 num_heads_q=64 head_dim=64 ", functions);
  return lowered("sm_80", text).launches().back()->key;
}

TEST(Source, HasTheProblemsFunctions) {
  const gpu::KernelKey key = key_with("score_mod=score*2 mask_mod=kv_idx<=q_idx");
  const std::string stub = gpu::make_source(key, false).stub;
  for (const std::string_view part :
       {"// score_mod: score*2.0\n// mask_mod: kv_idx<=q_idx\n#include \"device/attention/score_bounds.h\"\n",
        "static float score(", "static bool sees(", "static Bounds sees_within(",
        "WithFunctions<ForwardConfig, ScoreFunctions> kConfig",
        "(const __grid_constant__ tilewise::device::WithTables<tilewise::device::ForwardParams> params)"}) {
    EXPECT_NE(stub.find(part), std::string::npos) << part << " is not in\n" << stub;
  }
  EXPECT_EQ(stub.find("slope("), std::string::npos);
  const gpu::KernelKey backward = key_with("score_mod=score*score deterministic=1", "attention_backward");
  EXPECT_NE(gpu::make_source(backward, false).stub.find("static float slope("), std::string::npos);
  EXPECT_EQ(key_with("").definitions, "");
}

TEST(Source, OfEqualFunctionsIsOne) {
  const gpu::KernelKey key = key_with("score_mod=score+table0[h,kv_idx] tables=f32[4,512]");
  EXPECT_EQ(key, key_with("score_mod=score+table0[h,(kv_idx)] tables=f32[4,300]"));
  EXPECT_NE(key, key_with("score_mod=score+table0[h,kv_idx] tables=bf16[4,512]"));
  EXPECT_NE(key, key_with("score_mod=score+table0[h,q_idx] tables=f32[4,512]"));
  EXPECT_NE(key, key_with("score_mod=score+table0[h,kv_idx] tables=f32[4,0]"));
}

/// Compilers take long for many copies of a long function.
TEST(Source, CallsLongFunctions) {
  std::string longest = "score";
  for (int i = 0; i < 70; ++i) core::append(longest, concat("*(kv_idx+", i, ")"));
  EXPECT_EQ(key_with("score_mod=score*kv_idx").definitions.find("noinline"), std::string::npos);
  EXPECT_NE(key_with("score_mod=" + longest).definitions.find("noinline"), std::string::npos);
}

constexpr Family kEveryFamily[] = {Family::sm80, Family::cdna, Family::rdna, Family::rdna4, Family::gfx1250};

TEST(Source, OfKernelsWithoutSharedMemory) {
  for (const Family family : kEveryFamily) {
    const jit::KernelSource source = gpu::make_source(gpu::key_of<BwdPreprocess>(family, {}), false);
    EXPECT_EQ(source.symbol, "tilewise_bwd_preprocess");
    EXPECT_EQ(source.stub.find("__shared__"), std::string::npos) << source.stub;
    EXPECT_EQ(source.stub.find("sizeof(Kernel::Shared)"), std::string::npos) << source.stub;
  }
}

/// Every number of a configuration that tells two apart shows in the text.
TEST(Source, HasEveryFieldOfTheConfiguration) {
  for_each_kernel([]<typename Kernel> {
    const gpu::KernelKey key = gpu::key_of<Kernel>(Family::sm80, {});
    std::set<std::string> texts{gpu::make_source(key, false).stub};
    EXPECT_GE(key.body->config_ints, 10U);
    for (std::size_t i = 0; i < key.body->config_ints; ++i) {
      gpu::KernelKey changed = key;
      changed.config[i] ^= 2;  // of a flag no value at all, but never the same or 0 where some divide by it
      EXPECT_TRUE(texts.insert(gpu::make_source(changed, false).stub).second) << Kernel::kName << ", number " << i;
    }
    EXPECT_EQ(gpu::make_source(key, false).stub, gpu::make_source(key, false).stub);
  });
}

TEST(Source, DiffersBetweenKernelsFamiliesAndTheHost) {
  std::set<std::string> texts;
  std::size_t count = 0;
  for (const Family family : kEveryFamily) {
    for (const bool host : {false, true}) {
      for_each_kernel([&]<typename Kernel> {
        texts.insert(gpu::make_source(gpu::key_of<Kernel>(family, {}), host).stub);
        ++count;
      });
    }
  }
  EXPECT_EQ(texts.size(), count);
}

/// The hash covers the headers and the target: the same stub for another architecture is another kernel.
TEST(Source, HashCoversTheTarget) {
  const jit::KernelSource source = gpu::make_source(forward_on("sm_80").key, false);
  EXPECT_EQ(jit::source_hash(jit::parse_target("sm_80"), source), jit::source_hash(jit::parse_target("sm_80"), source));
  EXPECT_NE(jit::source_hash(jit::parse_target("sm_80"), source),
            jit::source_hash(jit::parse_target("sm_90a"), source));
}

}  // namespace
}  // namespace tilewise::backends::portable
