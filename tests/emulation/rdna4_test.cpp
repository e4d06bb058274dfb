// The portable kernels with the layouts of RDNA4 and gfx1250 against the reference: what their operations do apart from
// RDNA3's, in as few kernels as show it. A tile of 16 keys or queries is half an instruction of gfx1250: that of the
// lone wave that decodes, and of dk and dv beyond head_dim 64.
#include <gtest/gtest.h>

#include <string>

#include "../support/emulated_machines.hpp"
#include "../support/expect_passed.hpp"
#include "tilewise/kv_cache.hpp"

namespace tilewise::test {
namespace {

class WmmaOfHalvesKernels : public testing::TestWithParam<std::string> {
 protected:
  static void check(const std::string& problem, std::uint64_t seeds = 2) {
    for (std::uint64_t seed = 0; seed < seeds; ++seed) expect_passed(parse_problem(problem), GetParam(), seed);
  }
};

TEST_P(WmmaOfHalvesKernels, Forward) {
  check(
      "attention_forward dtype=bf16 head_dim=80 head_dim_v=64 mask=causal num_heads_q=2 num_heads_k=1 seqlen_q=70 "
      "seqlen_k=90 dropout_p=0.25");
}

TEST_P(WmmaOfHalvesKernels, Decoding) {
  check(
      "attention_forward dtype=f16 head_dim=96 num_heads_q=4 num_heads_k=1 seqlen_q=1 seqlen_k=300 "
      "sink=1 softcap=9 dropout_p=0.25 bias=f32[1,h,1,k] alibi_slopes=[h]");
}

TEST_P(WmmaOfHalvesKernels, Backward) {
  check(
      "attention_backward dtype=bf16 head_dim=80 mask=causal num_heads_q=2 num_heads_k=1 seqlen_q=50 seqlen_k=70 "
      "dropout_p=0.25");
}

TEST_P(WmmaOfHalvesKernels, CacheStep) {
  check(
      "kv_cache_attention dtype=bf16 batch_size=2 seqlen_q=3 num_heads_q=4 num_heads_k=2 head_dim=64 page_size=16 "
      "num_pages=16 max_pages_per_seq=8 append=1 seqlen_k_new=3 cache_seqlens=1 rotary=f32 rotary_dim=32 mask=causal");
}

TEST_P(WmmaOfHalvesKernels, Fp8CacheStep) {
  check(
      "kv_cache_attention dtype=f16 cache_dtype=fp8_e4m3 scales=token batch_size=2 seqlen_q=1 num_heads_q=4 "
      "num_heads_k=2 head_dim=64 capacity=100 cache_seqlens=1");
}

TEST_P(WmmaOfHalvesKernels, SelectedKeys) {
  check(
      "attention_forward dtype=bf16 head_dim=64 num_heads_q=40 num_heads_k=2 seqlen_q=3 seqlen_k=90 top_k=40 "
      "key_indices_per_head=1 mask=causal");
}

TEST_P(WmmaOfHalvesKernels, Merge) {
  check("merge dtype=bf16 parts=3 seqlen_q=5 num_heads_q=3 head_dim_v=64 sink=f32");
}

TEST_P(WmmaOfHalvesKernels, Linear) { check("linear dtype=bf16 tokens=70 n=40 k=48 bias=bf16 activation=gelu"); }

TEST_P(WmmaOfHalvesKernels, Experts) {
  check("moe dtype=bf16 tokens=20 hidden=64 intermediate=48 num_experts=4 top_k=2 gate=interleaved");
}

TILEWISE_ON_MACHINES(WmmaOfHalvesKernels, "emulation.rdna4", "emulation.gfx1250");

}  // namespace
}  // namespace tilewise::test
