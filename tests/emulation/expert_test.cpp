// Expert layers as portable kernels take them, under emulation against the reference: every layout of weights, option
// and format, forward and backward, few rows and many, hostile ids, and that other tokens change nothing.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "../support/emulated_machines.hpp"
#include "../support/expect_passed.hpp"
#include "core/message.hpp"
#include "tilewise/moe.hpp"

namespace tilewise::test {
namespace {

using core::concat;

class EmulatedExperts : public testing::TestWithParam<std::string> {
 protected:
  /// Rows that start on 16 bytes, and others; of which one has special values.
  static void check(const std::string& text) {
    const AnyProblem problem = parse_problem(text);
    expect_passed(problem, GetParam(), aligned_seed(false));
    expect_passed(problem, GetParam(), aligned_seed(true));
    std::uint64_t seed = 0;
    while (verify::draws_aligned_rows(seed)) ++seed;
    expect_passed(problem, GetParam(), seed);
  }
};

TEST_P(EmulatedExperts, EveryLayoutOfWeights) {
  for (const char* gate : {"concatenated", "interleaved", "none"}) {
    const std::string sizes = concat(" gate=", gate, " tokens=21 hidden=72 intermediate=40 num_experts=5 top_k=3");
    check(concat("moe dtype=bf16", sizes));
    check(concat("moe dtype=f16 gate_up_transposed=1 down_transposed=1", sizes));
    check(concat("moe_backward dtype=bf16 gate_up_transposed=1 dgate_up_transposed=1", sizes));
    check(concat("moe_backward dtype=f16 ddown_transposed=1 down_transposed=1", sizes));
  }
}

TEST_P(EmulatedExperts, InF32) {
  check("moe tokens=40 hidden=45 intermediate=70 num_experts=3 top_k=2 gate=interleaved");
  check("moe tokens=150 hidden=40 intermediate=72 num_experts=2 top_k=2 activation=gelu");
  check("moe_backward tokens=30 hidden=45 intermediate=37 num_experts=3 top_k=2 activation=gelu_tanh");
}

TEST_P(EmulatedExperts, FewRowsAndMany) {
  check("moe dtype=bf16 tokens=1 hidden=136 intermediate=200 num_experts=70 top_k=8");
  check("moe dtype=bf16 tokens=300 hidden=160 intermediate=96 num_experts=2 top_k=1 ids_dtype=i64");
  check("moe_backward dtype=bf16 tokens=300 hidden=72 intermediate=40 num_experts=1 top_k=1");
  // Several chunks of pairs.
  check("moe dtype=bf16 tokens=420 hidden=24 intermediate=16 num_experts=130 top_k=5 weights_dtype=bf16");
}

TEST_P(EmulatedExperts, EveryOption) {
  const std::string sizes = " dtype=bf16 tokens=9 hidden=72 intermediate=40 num_experts=4 top_k=3";
  for (const char* options :
       {"gate=interleaved activation=swiglu_oai clamp=before gate_up_bias=bf16 down_bias=f32 first_expert=8",
        "gate=none activation=relu_squared gate_up_bias=f16 clamp=after out_dtype=f32",
        "down_bias=f32 activation=relu weight_on_input=1 gate_up_bias=f32"}) {
    check(concat("moe ", options, sizes));
    check(concat("moe_backward ", options, options[5] == 'i' ? " dgate_up_bias=1 ddown_bias=1" : " dgate_up_bias=1",
                 sizes));
  }
  check(concat("moe norm=bf16 down_bias=f16 norm_epsilon=0.1", sizes));
}

TEST_P(EmulatedExperts, EveryFormat) {
  const std::string sizes = " tokens=11 hidden=160 intermediate=96 num_experts=3 top_k=2";
  for (const char* formats :
       {"x_format=fp8_1x128 w_format=fp8_128x128 h_format=fp8_1x128",
        "x_format=fp8_row w_format=fp8_row h_format=fp8_row", "x_format=fp8_tensor w_format=fp8_tensor",
        "x_format=mxfp8 w_format=mxfp8 h_format=mxfp8 gate=interleaved", "dtype=bf16 w_format=mxfp4 gate=interleaved",
        "dtype=f16 w_format=mxfp4", "dtype=bf16 w_format=nvfp4", "dtype=f32 w_format=nvfp4"}) {
    check(concat("moe ", formats, sizes));
  }
  check(concat("moe_backward dtype=bf16 w_format=fp8_128x128 gate_up_transposed=1", sizes));
  check(concat("moe_backward dtype=f16 w_format=mxfp4", sizes));
  check(concat("moe_backward dtype=bf16 w_format=fp8_row", sizes));
}

TEST_P(EmulatedExperts, NothingToDo) {
  check("moe dtype=bf16 tokens=0 hidden=72 intermediate=40 num_experts=3 top_k=2");
  check("moe dtype=bf16 tokens=3 hidden=72 intermediate=0 num_experts=3 top_k=2 down_bias=f32");
  check("moe dtype=bf16 tokens=3 hidden=72 intermediate=40 num_experts=0 top_k=2");
  check("moe_backward dtype=bf16 tokens=3 hidden=72 intermediate=40 num_experts=3 top_k=0");
  check("moe_backward tokens=0 hidden=24 intermediate=40 num_experts=3 top_k=1 gate_up_bias=f32 dgate_up_bias=1");
}

/// A layer whose tokens' results are compared bit for bit.
struct Layer {
  static constexpr std::int64_t kTokens = 80, kHidden = 40, kIntermediate = 24, kExperts = 1;
  std::vector<std::uint16_t> x, gate_up, down, out;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;

  Layer()
      : x(kTokens * kHidden),
        gate_up(2 * kIntermediate * kHidden),
        down(kHidden * kIntermediate),
        out(kTokens * kHidden),
        ids(kTokens),
        weights(kTokens, 0.75f) {
    std::uint32_t state = 7;
    // Numbers in bf16 between 1/4 and 2 of either sign.
    const auto fill = [&state](std::vector<std::uint16_t>& to) {
      for (std::uint16_t& value : to) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<std::uint16_t>((state >> 31) << 15 | (0x3E80u + (state >> 9) % 0x180u));
      }
    };
    fill(x), fill(gate_up), fill(down);
  }

  void run(std::int64_t tokens, const std::string& name) {
    MoeArguments call;
    call.x = TensorView(x.data(), DType::bf16, {tokens, kHidden});
    call.topk_ids = TensorView(ids.data(), DType::i32, {tokens, 1});
    call.topk_weights = TensorView(weights.data(), DType::f32, {tokens, 1});
    call.gate_up = TensorView(gate_up.data(), DType::bf16, {kExperts, 2 * kIntermediate, kHidden});
    call.down = TensorView(down.data(), DType::bf16, {kExperts, kHidden, kIntermediate});
    call.out = TensorView(out.data(), DType::bf16, {tokens, kHidden});
    call.batch_invariant = true;
    moe(call, {name});
  }
};

TEST_P(EmulatedExperts, OtherTokensChangeNothing) {
  Layer layer;
  layer.run(Layer::kTokens, GetParam());
  const std::vector<std::uint16_t> whole = layer.out;
  for (const std::int64_t tokens : {1, 20, 40}) {
    std::fill(layer.out.begin(), layer.out.end(), std::uint16_t{0x7FC0});
    layer.run(tokens, GetParam());
    EXPECT_EQ(std::memcmp(layer.out.data(), whole.data(), static_cast<std::size_t>(tokens * Layer::kHidden) * 2), 0)
        << tokens;
  }
}

/// Experts that lie more than 2^31 elements apart, in memory that is there where it is touched.
TEST_P(EmulatedExperts, FarApart) {
  constexpr std::int64_t kApart = (std::int64_t{1} << 31) + 64, kTokens = 3, kHidden = 32, kIntermediate = 8;
  constexpr std::int64_t kElements = 2 * kIntermediate * kHidden;
  constexpr auto kBytes = static_cast<std::size_t>(kApart + kElements) * sizeof(float);
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no room for " << kBytes << " bytes of addresses";
  std::vector<float> x(kTokens * kHidden), out(x.size()), expected(x.size()), weights{1.0f, 0.5f, 2.0f};
  std::vector<std::int32_t> ids{1, 0, 1};
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  for (std::int64_t i = 0; i < 2 * kElements; ++i)
    static_cast<float*>(memory)[i / kElements * kApart + i % kElements] = std::cos(static_cast<float>(i));
  MoeArguments call;
  call.x = TensorView(x.data(), DType::f32, {kTokens, kHidden});
  call.topk_ids = TensorView(ids.data(), DType::i32, {kTokens, 1});
  call.topk_weights = TensorView(weights.data(), DType::f32, {kTokens, 1});
  call.gate_up = TensorView(memory, DType::f32, {2, 2 * kIntermediate, kHidden});
  call.down = TensorView(memory, DType::f32, {2, kHidden, kIntermediate});
  call.gate_up.strides[0] = call.down.strides[0] = kApart;
  const auto run = [&call](const std::string& name, std::vector<float>& to) {
    call.out = TensorView(to.data(), DType::f32, {kTokens, kHidden});
    moe(call, {name});
  };
  run(GetParam(), out);
  run("reference", expected);
  for (std::size_t i = 0; i < out.size(); ++i)
    EXPECT_NEAR(out[i], expected[i], 1e-4f * (1.0f + std::abs(expected[i]))) << i;
  munmap(memory, kBytes);
}

TEST_P(EmulatedExperts, RefusesWithAReasonAndIsNeverChosenUnasked) {
  const auto reason_of = [](const std::string& text) -> std::string {
    for (const ExplainRow& row : explain(parse_problem(text)).rows) {
      if (row.implementation != GetParam()) continue;
      return row.accepted ? concat("accepted", row.chosen ? ", chosen" : "") : row.reason;
    }
    return "no such row";
  };
  const std::string sizes = " tokens=2 hidden=64 intermediate=64 top_k=2";
  EXPECT_EQ(reason_of("moe dtype=bf16 num_experts=8" + sizes), "accepted");
  EXPECT_EQ(reason_of("moe dtype=f64 num_experts=8" + sizes), "does not support f64");
  EXPECT_EQ(reason_of("moe dtype=bf16 num_experts=1025" + sizes), "num_experts must be <= 1024 (got 1025)");
  EXPECT_EQ(reason_of("moe_backward dtype=bf16 w_format=fp8_row down_transposed=1 num_experts=8" + sizes),
            "down with scales of its rows must have contiguous rows in the backward pass (got it transposed, "
            "w_format=fp8_row)");
}

TILEWISE_ON_MACHINES(EmulatedExperts, "emulation.cdna");
TILEWISE_ON_MACHINES_BY_NIGHT(EmulatedExperts, "emulation.sm80", "emulation.rdna");

}  // namespace
}  // namespace tilewise::test
