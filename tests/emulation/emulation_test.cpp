// The emulation as implementations: results through the ordinary door against the reference, over many
// shapes of a few kernels, and what it refuses.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "../support/dense_call.hpp"
#include "../support/emulated_machines.hpp"
#include "../support/expect_passed.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/error.hpp"
#include "verify/random.hpp"
#include "verify/verify.hpp"

namespace tilewise::test {
namespace {

/// Several tests use one kernel: what follows `shape` decides it, lengths and heads do not.
class Emulation : public testing::TestWithParam<std::string> {
 protected:
  static void check(const std::string& kernel, int count, std::int64_t longest) {
    verify::Random random(11);
    for (int i = 0; i < count; ++i) {
      const auto draw = [&](std::int64_t most) { return std::to_string(random.integer(1, most)); };
      const std::int64_t heads_k = random.integer(1, 2);
      const std::string shape = " batch_size=" + draw(2) +
                                " seqlen_q=" + std::to_string(64 + random.integer(1, longest - 64)) +
                                " seqlen_k=" + draw(longest) + " num_heads_q=" + std::to_string(2 * heads_k) +
                                " num_heads_k=" + std::to_string(heads_k);
      expect_passed(parse_problem(kernel + shape), GetParam(), static_cast<std::uint64_t>(i));
    }
  }
};

TEST_P(Emulation, ForwardCausal) { check("attention_forward dtype=bf16 head_dim=64 mask=causal", 6, 150); }

// A head_dim that is no multiple of 8 takes one kernel whatever the tensors' alignment: less to compile.
TEST_P(Emulation, ForwardWithEveryOption) {
  check(
      "attention_forward dtype=f16 head_dim=39 head_dim_v=23 mask=causal window_left=20 softcap=5 bias=f32[b,h,q,k] "
      "alibi_slopes=[h] sink=1 dropout_p=0.25 seqused_q=1 seqused_k=1 leftpad_k=1",
      5, 150);
}

TEST_P(Emulation, Backward) { check("attention_backward dtype=bf16 head_dim=23 head_dim_v=39 mask=causal", 4, 130); }

TEST_P(Emulation, BackwardWithEveryOption) {
  check(
      "attention_backward dtype=f16 head_dim=32 window_left=30 window_right=9 softcap=5 "
      "bias=query[1,h,q,k] dbias=1 sink=query dsink=1 dropout_p=0.25 dlse=1",
      2, 90);
}

/// A small call whose result is known from the reference.
DenseCall small_call() {
  return DenseCall(
      {.batch = 1, .seqlen_q = 70, .seqlen_k = 90, .heads_q = 2, .dim = 64, .dim_v = 64, .dtype = DType::bf16});
}

TEST_P(Emulation, TheSeedOfTheOrderChangesNoBit) {
  std::vector<std::vector<double>> results;
  for (const char* seed : {"0", "1", "18446744073709551615"}) {
    setenv("TILEWISE_EMULATION_SEED", seed, 1);
    DenseCall call = small_call();
    call.forward(GetParam());
    results.push_back(call.out.values());
    EXPECT_EQ(results.back(), results.front());
  }
  for (const char* seed : {"-1", "x", "1x", "18446744073709551616"}) {
    setenv("TILEWISE_EMULATION_SEED", seed, 1);
    try {
      small_call().forward(GetParam());
      ADD_FAILURE() << "took the seed " << seed;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_EQ(std::string(error.what()),
                "TILEWISE_EMULATION_SEED: must be a number from 0 to 2^64 - 1 (got '" + std::string(seed) + "')");
    }
  }
  unsetenv("TILEWISE_EMULATION_SEED");
}

/// Scores far apart, so that the softmax's references move often, in some rows and not in others.
TEST_P(Emulation, ARowsBitsDoNotDependOnItsNeighbours) {
  Sizes sizes{
      .seqlen_q = 90, .seqlen_k = 300, .heads_q = 4, .heads_k = 2, .dim = 64, .dim_v = 64, .dtype = DType::bf16};
  DenseCall all(sizes), alone((sizes.seqlen_q = 1, sizes));
  alone.k = all.k, alone.v = all.v;
  for (DenseCall* call : {&all, &alone}) call->options.softmax_scale = 4.0, call->options.batch_invariant = true;
  all.forward(GetParam());
  for (const std::int64_t row : {0, 37, 89}) {
    alone.q.fill_with([&](auto p) { return all.q.get({0, row, p[2], p[3]}); });
    alone.forward(GetParam());
    for (std::int64_t head = 0; head < 4; ++head) {
      EXPECT_EQ(alone.lse.get({0, head, 0}), all.lse.get({0, head, row}));
      for (std::int64_t col = 0; col < 64; ++col)
        EXPECT_EQ(alone.out.get({0, 0, head, col}), all.out.get({0, row, head, col}));
    }
  }
}

ExplainRow row_of(const Problem& problem, const std::string& name, const std::string& asked_for) {
  for (const ExplainRow& row : explain(problem, {asked_for}).rows)
    if (row.implementation == name) return row;
  throw Error(ErrorCode::invalid_argument, name + " is not in the table");
}

TEST_P(Emulation, IsNeverChosenUnasked) {
  setenv("TILEWISE_DISABLE", "cpu.*", 1);
  for (const char* text :
       {"attention_forward dtype=bf16 seqlen_q=1 head_dim=64",
        "attention_forward dtype=bf16 batch_size=64 seqlen_q=65536 num_heads_q=64 head_dim=256 window_left=1"}) {
    EXPECT_TRUE(row_of(parse_problem(text), GetParam(), "").accepted);
    EXPECT_TRUE(row_of(parse_problem(text), "reference", "").chosen);
  }
  unsetenv("TILEWISE_DISABLE");
}

TEST_P(Emulation, RefusesWithReasons) {
  const auto reason = [&](const char* text) { return row_of(parse_problem(text), GetParam(), GetParam()).reason; };
  EXPECT_EQ(reason("attention_forward dtype=f32 seqlen_q=8 head_dim=64"), "does not support f32");
  EXPECT_EQ(reason("attention_forward dtype=bf16 seqlen_q=8 head_dim=264"),
            "head_dim and head_dim_v must be <= 256 (got 264 and 264)");
  setenv("TILEWISE_CXX", "/no/such/compiler", 1);
  EXPECT_NE(reason("attention_forward dtype=bf16 seqlen_q=8 head_dim=72 softcap=3").find("/no/such/compiler"),
            std::string::npos);
  unsetenv("TILEWISE_CXX");
}

TILEWISE_ON_MACHINES(Emulation, "emulation.sm80", "emulation.cdna", "emulation.rdna");

}  // namespace
}  // namespace tilewise::test
