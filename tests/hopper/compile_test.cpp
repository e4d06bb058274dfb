// A real compiler: a representative set of Hopper kernels keeps its registers, and the parameter block lies as the host
// says. Skips where NVRTC is not installed.
#include <cstdlib>
#include <vector>

#include "backends/cuda/hopper/linear.hpp"
#include "backends/cuda/hopper/linear_kernels.hpp"
#include "backends/cuda/hopper/moe.hpp"
#include "backends/cuda/hopper/moe_kernels.hpp"
#include "device/gemm/sm90/params.h"
#include "gpu/compile_ahead.hpp"
#include "jit/kernel_cache.hpp"
#include "jit/search_paths.hpp"
#include "support.hpp"
#include "tilewise/linear.hpp"
#include "tilewise/moe.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::concat;

// Most of a kernel at its limit are of what only rows whose scores are huge have use for, outside the loops.
constexpr int kMostSpilledBytes = 112;

class HopperCompiled : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (const char* name : {"TILEWISE_BUNDLE", "TILEWISE_KEEP_SOURCE"}) unsetenv(name);
    jit::add_package_folders({PACKAGE_FOLDER});
  }
  void SetUp() override {
    if (const std::string reason = jit::compiler_reason(target_); !reason.empty()) GTEST_SKIP() << reason;
  }

  jit::Target target_ = jit::parse_target("sm_90a");
};

/// What the host says of a kernel's parameters, as assertions for the compiler.
template <typename Kernel>
std::string layout_of() {
  std::string text;
  for (const gpu::ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
    core::append(text, concat("static_assert(__builtin_offsetof(tilewise::device::", Kernel::kParams, ", ", field.name,
                              ") == ", field.offset, ");\n"));
  }
  core::append(text, concat("static_assert(sizeof(tilewise::device::", Kernel::kParams,
                            ") == ", sizeof(typename Kernel::Params), ");\n"));
  return text;
}

TEST_F(HopperCompiled, KernelsKeepToRegisters) {
  const std::string every_but_bias =
      " layout=thd max_seqlen_q=4096 batch_size=2 mask=causal window_left=256 softcap=30 alibi_slopes=[h] sink=1 "
      "dropout_p=0.1 seed_tensor=1 seqused_q=1 seqused_k=1 leftpad_k=1";
  const std::string every_option = every_but_bias + " bias=query[b,h,q,k]";
  const std::vector<std::string> problems{
      "dtype=bf16 head_dim=64 seqlen_q=512",
      "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=64 seqlen_q=8192 mask=causal",
      "dtype=bf16 head_dim=64 batch_size=64 seqlen_q=384 bias=query[1,h,q,k]",
      "dtype=f16 head_dim=64 batch_size=64 seqlen_q=128 mask=causal alibi_slopes=[h]",
      "dtype=bf16 head_dim=128 seqlen_q=4096",
      "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal",
      "dtype=f16 head_dim=128 seqlen_q=4096 mask=causal window_left=256",
      "dtype=bf16 head_dim=128 seqlen_q=1024 mask=causal window_left=512",
      "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal window_left=1024",
      "dtype=bf16 head_dim=64 layout=thd max_seqlen_q=4096 batch_size=2 mask=causal window_left=1024",
      "dtype=bf16 head_dim=256 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=256 seqlen_q=4096",
      "dtype=bf16 head_dim=192 head_dim_v=128 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=72 seqlen_q=4096",
      "dtype=bf16 head_dim=80 seqlen_q=4096",
      "dtype=f16 head_dim=80 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=128 seqlen_q=1 num_heads_k=4",
      "dtype=bf16 head_dim=128 seqlen_q=512 seqlen_k=8192 num_heads_k=8 mask=causal",
      "dtype=bf16 head_dim=128 seqlen_q=64 seqlen_k=8192 num_heads_k=8 mask=causal",
      "dtype=bf16 head_dim=64 seqlen_q=512 seqlen_k=8192 num_heads_k=8",
      "dtype=bf16 head_dim=256 seqlen_q=64 seqlen_k=8192 num_heads_k=8 seqused_k=1",
      "dtype=fp8_e4m3 head_dim=128 seqlen_q=64 seqlen_k=8192 num_heads_k=8 q_scale=batch_head",
      "dtype=bf16 head_dim=128 seqlen_q=4096 softcap=30",
      "dtype=fp8_e4m3 head_dim=64 seqlen_q=4096 mask=causal",
      "dtype=fp8_e4m3 head_dim=128 seqlen_q=4096",
      "dtype=fp8_e4m3 head_dim=128 seqlen_q=4096 mask=causal seqused_k=1",
      "dtype=fp8_e4m3 head_dim=256 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal alibi_slopes=[h]",
      "dtype=bf16 head_dim=128 seqlen_q=4096 alibi_slopes=[h]",
      "dtype=bf16 head_dim=128 seqlen_q=4096 bias=query[b,h,q,k]",
      "dtype=bf16 head_dim=64 seqlen_q=4096 bias=query[b,h,q,k] mask=causal",
      "dtype=f16 head_dim=64 seqlen_q=512 bias=bool[b,1,1,k]",
      "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal window_left=1023 softcap=30",
      "dtype=f16 head_dim=128 seqlen_q=4096 bias=query[b,h,q,k] mask=causal",
      "dtype=bf16 head_dim=128 seqlen_q=4096 bias=f32[b,h,q,k] bias_unaligned=1",
      "dtype=bf16 head_dim=128 seqlen_q=4096 bias=bool[b,1,q,k]",
      "dtype=bf16 head_dim=128 seqlen_q=4096 dropout_p=0.1 mask=causal",
      "dtype=bf16 head_dim=256 seqlen_q=4096 bias=query[b,h,q,k]",
      "dtype=bf16 head_dim=256 seqlen_q=4096 bias=f32[b,h,q,k]",
      "dtype=bf16 head_dim=256 seqlen_q=4096 dropout_p=0.1",
      "dtype=bf16 head_dim=256 seqlen_q=64 seqlen_k=8192 num_heads_k=8 bias=query[b,h,q,k]",
      "dtype=fp8_e4m3 head_dim=256 bias=f32[b,h,q,k]" + every_but_bias,
      "dtype=bf16 head_dim=64" + every_option,
      "dtype=bf16 head_dim=256" + every_option,
      "dtype=bf16 head_dim=128" + every_option,
  };
  const std::vector<std::string> backward{
      "dtype=bf16 head_dim=192 head_dim_v=128 seqlen_q=4096",
      "dtype=f16 head_dim=192 head_dim_v=128 seqlen_q=4096 mask=causal window_left=1023",
      "dtype=bf16 head_dim=192 head_dim_v=128 seqlen_q=4096 mask=causal seqused_k=1",
      "dtype=bf16 head_dim=192 head_dim_v=128 seqlen_q=4096 mask=causal deterministic=1",
      "dtype=bf16 head_dim=192 head_dim_v=128 batch_size=64 seqlen_q=512 mask=causal",
      "dtype=bf16 head_dim=192 head_dim_v=128 batch_size=64 seqlen_q=512 num_heads_k=4 deterministic=1",
      "dtype=bf16 head_dim=192 head_dim_v=128 batch_size=64 seqlen_q=512 mask=causal num_heads_k=4",
      "dtype=bf16 head_dim=192 head_dim_v=128 layout=thd max_seqlen_q=512 batch_size=64 mask=causal window_left=256 "
      "deterministic=1",
      "dtype=bf16 head_dim=64 seqlen_q=4096",
      "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=128 seqlen_q=4096",
      "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal",
      "dtype=f16 head_dim=128 seqlen_q=4096 mask=causal window_left=256",
      "dtype=bf16 head_dim=96 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=128 batch_size=16 seqlen_q=512 mask=causal num_heads_k=4",
      "dtype=bf16 head_dim=128 batch_size=16 seqlen_q=1024 mask=causal num_heads_k=4",
      "dtype=bf16 head_dim=128 batch_size=4 seqlen_q=4096 mask=causal num_heads_k=4",
      "dtype=bf16 head_dim=64 batch_size=16 seqlen_q=1024 mask=causal num_heads_k=4",
      "dtype=bf16 head_dim=256 batch_size=4 seqlen_q=4096 mask=causal num_heads_k=4",
      "dtype=bf16 head_dim=128 layout=thd max_seqlen_q=4096 batch_size=4 mask=causal num_heads_k=4 deterministic=1",
      "dtype=bf16 head_dim=128 layout=thd max_seqlen_q=4096 batch_size=2 mask=causal",
      "dtype=bf16 head_dim=64 seqlen_q=4096 dropout_p=0.1",
      "dtype=bf16 head_dim=128 seqlen_q=4096 dropout_p=0.1 mask=causal",
      "dtype=f16 head_dim=64 layout=thd max_seqlen_q=4096 batch_size=2 mask=causal window_left=256 dropout_p=0.1",
      "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal softcap=30 dropout_p=0.1",
      "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal alibi_slopes=[h]",
      "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal alibi_slopes=[h]",
      "dtype=bf16 head_dim=256 seqlen_q=4096 mask=causal alibi_slopes=[h]",
      "dtype=bf16 head_dim=256 seqlen_q=4096 mask=causal dropout_p=0.1",
      "dtype=bf16 head_dim=64 seqlen_q=4096 bias=f32[b,h,q,k]",
      "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal bias=query[b,h,q,k] dbias=1",
      "dtype=f16 head_dim=128 seqlen_q=4096 bias=bool[b,1,q,k]",
      "dtype=bf16 head_dim=256 seqlen_q=4096 bias=query[b,h,q,k]",
      "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal softcap=30",
      "dtype=bf16 head_dim=128 seqlen_q=4096 softcap=30",
      "dtype=bf16 head_dim=96 seqlen_q=4096 mask=causal softcap=30",
      "dtype=f16 head_dim=128 seqlen_q=4096 mask=causal softcap=30 alibi_slopes=[h] dropout_p=0.1",
      "dtype=bf16 head_dim=256 seqlen_q=4096 mask=causal softcap=30",
      "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal deterministic=1",
      "dtype=bf16 head_dim=128 seqlen_q=4096 deterministic=1",
      "dtype=f16 head_dim=128 layout=thd max_seqlen_q=4096 batch_size=2 mask=causal window_left=256 deterministic=1",
      "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal deterministic=1 dropout_p=0.1",
      "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal window_left=1023 deterministic=1",
      "dtype=bf16 head_dim=96 seqlen_q=4000 mask=causal deterministic=1",
      "dtype=bf16 head_dim=64 seqlen_q=1000 deterministic=1 softcap=30",
      "dtype=bf16 head_dim=128 seqlen_q=1024 deterministic=1",
      "dtype=bf16 head_dim=256 seqlen_q=4096 mask=causal deterministic=1",
      "dtype=bf16 head_dim=256 seqlen_q=4096 deterministic=1",
      "dtype=bf16 head_dim=256 seqlen_q=4096",
      "dtype=bf16 head_dim=256 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=192 head_dim_v=128 seqlen_q=4096 mask=causal",
      "dtype=f16 head_dim=256 layout=thd max_seqlen_q=4096 batch_size=2 mask=causal window_left=256",
      "dtype=bf16 head_dim=160 head_dim_v=256 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=160 seqlen_q=4096 mask=causal",
      "dtype=f16 head_dim=64 seqlen_q=4096 mask=causal",
      "dtype=f16 head_dim=64 seqlen_q=1024 mask=causal deterministic=1",
      "dtype=f16 head_dim=96 seqlen_q=4096 mask=causal dropout_p=0.1",
      "dtype=bf16 head_dim=128 seqlen_q=4096 bias=bool[b,1,1,k]",
      "dtype=f16 head_dim=128 seqlen_q=1024 mask=causal bias=query[b,h,q,k] deterministic=1",
      "dtype=bf16 head_dim=64 seqlen_q=1024 mask=causal bias=query[b,h,q,k] deterministic=1",
      "dtype=f16 head_dim=256 seqlen_q=4096 mask=causal softcap=30",
  };
  std::vector<gpu::KernelBuild> builds;
  for (const std::string& problem : problems) {
    const gpu::Lowering lowering = lowered(concat(problem, " num_heads_q=32"));
    gpu::add_builds(lowering.launches(), target_, builds);
  }
  for (const std::string& problem : backward) {
    const gpu::Lowering lowering = lowered_backward(concat(problem, " num_heads_q=32"));
    gpu::add_builds(lowering.launches(), target_, builds);
  }
  const std::string mla = "mla=1 num_heads_q=128 num_heads_k=1 head_dim=576 head_dim_v=512 ",
                    heads = "mask=causal num_heads_q=32 num_heads_k=8 page_size=16 ";
  for (const std::string& step :
       {mla + "dtype=bf16 seqlen_q=1 page_size=64 num_pages=8192 max_pages_per_seq=128 batch_size=64",
        mla + "dtype=f16 seqlen_q=2 mask=causal page_size=16 num_pages=256 max_pages_per_seq=256",
        mla + "dtype=bf16 seqlen_q=1 mask=causal page_size=64 num_pages=8192 max_pages_per_seq=512 batch_size=64",
        mla + "dtype=f16 seqlen_q=2 page_size=16 num_pages=8192 max_pages_per_seq=1024 batch_size=8",
        heads + "dtype=bf16 seqlen_q=64 head_dim=128 num_pages=512 max_pages_per_seq=512 append=1 "
                "seqlen_k_new=64 rotary=f32 rotary_dim=128",
        heads + "dtype=bf16 seqlen_q=512 head_dim=128 num_pages=8192 max_pages_per_seq=512 batch_size=16",
        heads + "dtype=f16 seqlen_q=512 head_dim=256 num_pages=8192 max_pages_per_seq=512 batch_size=16"}) {
    const KvCacheProblem problem = parse_problem(concat("kv_cache_attention device=cuda cache_seqlens=1 ", step));
    const gpu::Outcome outcome = lower(problem, h200());
    ASSERT_EQ(outcome.refusal, "");
    gpu::add_builds(outcome.lowering.launches(), target_, builds);
  }
  ASSERT_GE(builds.size(), problems.size());
  gpu::compile_ahead(builds);
  for (const gpu::KernelBuild& build : builds) {
    try {
      if (build.error) std::rethrow_exception(build.error);
    } catch (const std::exception& thrown) {
      ADD_FAILURE() << thrown.what() << "\n" << build.source.stub;
      continue;
    }
    EXPECT_GT(build.compiled->resources.registers, 0) << build.source.stub;
    EXPECT_LE(build.compiled->resources.spill_bytes, kMostSpilledBytes) << build.source.stub;
    // ptxas says so where each product waits for the one before, at a third of the speed.
    EXPECT_EQ(build.compiled->log.find("wgmma.mma_async instructions are serialized"), std::string::npos)
        << build.compiled->log << build.source.stub;
  }
}

void expect_few_spills(std::vector<gpu::KernelBuild>& builds, std::int64_t most) {
  gpu::compile_ahead(builds);
  for (const gpu::KernelBuild& build : builds) {
    if (build.error) std::rethrow_exception(build.error);
    EXPECT_LE(build.compiled->resources.spill_bytes, most) << build.source.stub;
    EXPECT_EQ(build.compiled->log.find("wgmma.mma_async instructions are serialized"), std::string::npos)
        << build.compiled->log << build.source.stub;
  }
}

/// A layer's own: few tokens, more, many with each number of experts, and what options add. Accumulators of 256 columns
/// leave little: most is spilled with eight experts' columns held, 388 bytes, and the speeds of docs/hopper.md include
/// it.
TEST_F(HopperCompiled, ExpertLayersKeepToRegisters) {
  constexpr std::int64_t kMostSpilled = 400;
  const std::string qwen = " hidden=2048 intermediate=768 num_experts=128 top_k=8",
                    wide = " hidden=7168 intermediate=2048 num_experts=256 top_k=8",
                    gpt_oss =
                        " hidden=2880 intermediate=2880 num_experts=32 top_k=4 gate=interleaved "
                        "activation=swiglu_oai clamp=before gate_up_bias=bf16 down_bias=bf16";
  std::vector<gpu::KernelBuild> builds;
  for (const std::string& layer :
       {"dtype=bf16 tokens=1" + qwen, "dtype=f16 tokens=16" + qwen, "dtype=bf16 tokens=256" + wide,
        "dtype=bf16 tokens=16384" + qwen, "dtype=bf16 tokens=16384" + wide, "dtype=bf16 tokens=2" + gpt_oss,
        "dtype=bf16 tokens=64" + gpt_oss, "dtype=bf16 tokens=16384" + gpt_oss,
        "dtype=f16 tokens=4096 weight_on_input=1 gate=none activation=gelu" + qwen}) {
    const gpu::Outcome outcome = lower(MoeProblem(parse_problem(concat("moe device=cuda ", layer))), h200());
    ASSERT_EQ(outcome.refusal, "");
    gpu::add_builds(outcome.lowering.launches(), target_, builds);
  }
  expect_few_spills(builds, kMostSpilled);
}

/// Linear layers, whose accumulators fill the registers that their warpgroups take: each tile, and what options add.
TEST_F(HopperCompiled, LinearLayersKeepToRegisters) {
  constexpr std::int64_t kMostSpilled = 0;
  const std::string large = " tokens=8192 n=8192 k=8192",
                    fp8 = "dtype=fp8_e4m3 x_format=fp8_1x128 w_format=fp8_128x128",
                    groups = " groups=offsets_i32 num_experts=64";
  std::vector<gpu::KernelBuild> builds;
  for (const std::string& layer : std::vector<std::string>{
           "dtype=bf16" + large, "dtype=f16 w_transposed=1" + large, "dtype=bf16 tokens=64 n=4096 k=4096",
           "dtype=bf16 tokens=512 n=4096 k=4096", "dtype=bf16 bias=f32 activation=gelu" + large,
           "dtype=bf16 bias=bf16 activation=silu" + groups + large, fp8 + large, fp8 + " tokens=64 n=4096 k=4096",
           fp8 + " tokens=512 n=4096 k=4096", fp8 + " bias=bf16 activation=silu" + groups + large}) {
    const gpu::Outcome outcome = lower(LinearProblem(parse_problem(concat("linear device=cuda ", layer))), h200());
    ASSERT_EQ(outcome.refusal, "");
    gpu::add_builds(outcome.lowering.launches(), target_, builds);
  }
  expect_few_spills(builds, kMostSpilled);
}

TEST_F(HopperCompiled, ParametersLieAsTheHostSays) {
  const std::string text =
      concat("#include \"device/hopper/params.h\"\n#include \"device/gemm/sm90/params.h\"\n",
             "#include \"device/moe/sm90/params.h\"\n", layout_of<Forward>(), layout_of<Bwd>(),
             layout_of<BwdPreprocess>(), layout_of<Gemm>(), layout_of<ScaledGemm>(), layout_of<GemmPrepare>(),
             layout_of<MoeSort>(), layout_of<MoeGather>(), layout_of<MoeLayer>(), layout_of<MoeDecode>(),
             "extern \"C\" __global__ void layout() {}\n");
  EXPECT_EQ(jit::find_or_compile(target_, {text, "layout", {}})->symbol, "layout");
}

}  // namespace
}  // namespace tilewise::backends::hopper
