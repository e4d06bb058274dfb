// What the CPU implementations are estimated to take: near the published times, ordered as their instruction sets
// are, growing with the work. Nothing is timed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/cpu/cost.hpp"
#include "tilewise/attention.hpp"
#include "verify/verify.hpp"

namespace tilewise::backends::cpu {
namespace {

constexpr Processor kXeon{Processor::Vendor::intel, 6}, kZen4{Processor::Vendor::other, 25},
    kZen5{Processor::Vendor::other, 26}, kUnknown{};

#if defined(__x86_64__)

const KernelSet& kernels_of(Isa isa) {
  switch (isa) {
    case Isa::avx2:
      return kAvx2Kernels;
    case Isa::avx512:
      return kAvx512Kernels;
    case Isa::avx512_bf16:
      return kAvx512Bf16Kernels;
    case Isa::amx_bf16:
      return kAmxBf16Kernels;
    default:
      return kGenericKernels;
  }
}

double estimate(const Problem& problem, Isa isa, const Processor& processor, int threads = 1) {
  return estimate_us(problem, isa, kernels_of(isa), traits_of(processor), threads);
}

double estimate(std::string_view text, Isa isa, const Processor& processor, int threads = 1) {
  return estimate(parse_problem(text), isa, processor, threads);
}

/// Figures of docs/benchmarks, measured with nothing else running: 16 heads.
struct Measured {
  Processor processor;
  Isa isa;
  int threads;
  const char* problem;
  double gflops;
};

constexpr Measured kMeasured[] = {
    {kZen4, Isa::avx512_bf16, 1, "attention_forward dtype=bf16 seqlen_q=256 head_dim=64", 160.2},
    {kZen4, Isa::avx512_bf16, 1, "attention_forward dtype=bf16 seqlen_q=256 head_dim=64 mask=causal", 120.8},
    {kZen4, Isa::avx512_bf16, 2, "attention_forward dtype=bf16 seqlen_q=4096 head_dim=128", 374.5},
    {kZen4, Isa::avx512, 1, "attention_forward dtype=f32 seqlen_q=256 head_dim=128 mask=causal", 74.2},
    {kZen4, Isa::avx512, 2, "attention_forward dtype=f32 seqlen_q=1024 head_dim=64", 185.2},
    {kZen4, Isa::avx512_bf16, 1, "attention_backward dtype=bf16 seqlen_q=256 head_dim=64 mask=causal", 101.1},
    {kZen4, Isa::avx512_bf16, 2, "attention_backward dtype=bf16 seqlen_q=4096 head_dim=64", 335.7},
    {kZen4, Isa::avx512, 1, "attention_backward dtype=f32 seqlen_q=1024 head_dim=128", 101.5},
    {kXeon, Isa::amx_bf16, 1, "attention_forward dtype=bf16 seqlen_q=256 head_dim=64", 299.3},
    {kXeon, Isa::amx_bf16, 2, "attention_forward dtype=bf16 seqlen_q=4096 head_dim=128", 1651.0},
    {kXeon, Isa::avx512, 1, "attention_forward dtype=f32 seqlen_q=1024 head_dim=64 mask=causal", 161.8},
    {kXeon, Isa::amx_bf16, 1, "attention_backward dtype=bf16 seqlen_q=1024 head_dim=64", 603.9},
    {kXeon, Isa::avx512, 2, "attention_backward dtype=f32 seqlen_q=4096 head_dim=128 mask=causal", 322.9},
};

TEST(CpuEstimates, AreWithinAFactorOfTwoOfPublishedTimes) {
  for (const Measured& row : kMeasured) {
    Problem problem = parse_problem(row.problem);
    problem.num_heads_q = problem.num_heads_k = 16;
    const double s = static_cast<double>(problem.seqlen_q), dim = static_cast<double>(problem.head_dim);
    const double pairs = problem.mask == Mask::causal ? 0.5 * s * (s + 1.0) : s * s;
    const double passes = problem.operation == Operation::attention_backward ? 2.5 : 1.0;
    const double us = 1e-3 * 4.0 * 16.0 * pairs * dim * passes / row.gflops;
    const double ratio = estimate(problem, row.isa, row.processor, row.threads) / us;
    EXPECT_GT(ratio, 0.67) << row.problem;
    EXPECT_LT(ratio, 1.5) << row.problem;
  }
}

TEST(CpuEstimates, OfDecodeGoByTheBytes) {
  const auto decode = [](std::string_view dtype, Isa isa, const Processor& processor, int threads) {
    return estimate("attention_forward seqlen_q=1 seqlen_k=8192 num_heads_q=32 num_heads_k=8 head_dim=128 dtype=" +
                        std::string(dtype),
                    isa, processor, threads);
  };
  const auto near = [](double us, double measured) { return us > 0.6 * measured && us < 1.5 * measured; };
  EXPECT_PRED2(near, decode("bf16", Isa::avx512_bf16, kZen4, 1), 1481.0);
  EXPECT_PRED2(near, decode("f32", Isa::avx512, kZen4, 1), 2675.0);
  EXPECT_PRED2(near, decode("f32", Isa::avx512, kZen4, 2), 2235.0);
  EXPECT_PRED2(near, decode("bf16", Isa::amx_bf16, kXeon, 1), 3923.0);
  EXPECT_PRED2(near, decode("f32", Isa::avx512, kXeon, 2), 3370.0);
}

std::vector<Problem> many_problems() {
  std::vector<Problem> problems;
  for (std::uint64_t seed = 0; seed < 400; ++seed) problems.push_back(verify::random_problem(seed));
  for (const char* text :
       {"attention_forward seqlen_q=0 head_dim=1", "attention_forward seqlen_q=4096 seqlen_k=0 head_dim=1",
        "attention_forward seqlen_q=1 head_dim=1", "attention_backward seqlen_q=1 seqlen_k=1 head_dim=1",
        "attention_forward seqlen_q=16384 num_heads_q=64 head_dim=512 batch_size=64",
        "attention_backward seqlen_q=16384 num_heads_q=64 head_dim=8 mask=causal window_left=0",
        "attention_forward seqlen_q=1 seqlen_k=1000000 num_heads_q=32 head_dim=128"}) {
    problems.push_back(parse_problem(text));
  }
  return problems;
}

/// Plans are kept for any number of threads, so the order must not hang on it.
TEST(CpuEstimates, OrderInstructionSetsAlikeForEveryProblemAndThreadCount) {
  using Order = std::vector<Isa>;
  const std::pair<Processor, Order> processors[] = {
      {kXeon, {Isa::amx_bf16, Isa::avx512, Isa::avx512_bf16, Isa::avx2, Isa::generic}},
      {kZen4, {Isa::avx512_bf16, Isa::avx512, Isa::avx2, Isa::generic}},
      {kZen5, {Isa::avx512_bf16, Isa::avx512, Isa::avx2, Isa::generic}},
      {kUnknown, {Isa::avx512_bf16, Isa::avx512, Isa::avx2, Isa::generic}},
  };
  for (Problem problem : many_problems()) {
    problem.dtype = DType::bf16;
    for (const auto& [processor, order] : processors) {
      for (std::size_t i = 0; i + 1 < order.size(); ++i) {
        const auto in_order = [&, &sets = order](int threads) {
          return estimate(problem, sets[i], processor, threads) <= estimate(problem, sets[i + 1], processor, threads);
        };
        const bool alone = in_order(1);
        for (const int threads : {2, 64}) {
          EXPECT_EQ(in_order(threads), alone)
              << to_string(order[i]) << ", " << threads << " threads: " << to_string(problem);
        }
        // dbias takes one more pass over scores, which tiles don't make faster; of a few microseconds what tiles cost
        // themselves shows.
        const bool nearly =
            estimate(problem, order[i], processor, 1) <= 1.05 * estimate(problem, order[i + 1], processor, 1);
        EXPECT_TRUE(alone || nearly || problem.dbias) << to_string(order[i]) << ": " << to_string(problem);
      }
    }
  }
}

TEST(CpuEstimates, ArePositiveAndFinite) {
  for (const Problem& problem : many_problems()) {
    for (const Isa isa : {Isa::generic, Isa::avx2, Isa::avx512}) {
      const double us = estimate(problem, isa, kZen4, 2);
      EXPECT_TRUE(std::isfinite(us) && us > 0.0) << us << ": " << to_string(problem);
    }
  }
}

TEST(CpuEstimates, GrowWithTheWork) {
  for (const char* text : {"attention_forward dtype=bf16 head_dim=64", "attention_backward dtype=bf16 head_dim=96",
                           "attention_forward dtype=bf16 head_dim=128 mask=causal",
                           "attention_backward dtype=bf16 head_dim=64 window_left=100"}) {
    for (const int threads : {1, 2, 16}) {
      Problem problem = parse_problem(std::string(text) + " seqlen_q=1");
      const auto us = [&] { return estimate(problem, Isa::avx512_bf16, kZen4, threads) * (1.0 + 1e-12); };
      for (std::int64_t Problem::* size : {&Problem::batch_size, &Problem::num_heads_q, &Problem::seqlen_q}) {
        problem.batch_size = 1;
        problem.num_heads_q = problem.num_heads_k = 2;
        problem.seqlen_q = problem.seqlen_k = 64;
        double before = 0.0;
        for (std::int64_t n = 1; n <= 4096; n += std::max<std::int64_t>(n / 5, 1)) {
          problem.*size = n;
          if (size == &Problem::num_heads_q) problem.num_heads_k = n;
          if (size == &Problem::seqlen_q) problem.seqlen_k = n;
          EXPECT_GE(us(), before) << threads << " threads: " << to_string(problem);
          before = estimate(problem, Isa::avx512_bf16, kZen4, threads);
        }
      }
    }
  }
}

TEST(CpuEstimates, CountWhatMasksHide) {
  for (const char* operation : {"attention_forward", "attention_backward"}) {
    for (const int seqlen : {1, 16, 100, 512, 4096}) {
      const auto us = [&](const std::string& options) {
        return estimate(std::string(operation) +
                            " dtype=bf16 head_dim=64 num_heads_q=8 seqlen_q=" + std::to_string(seqlen) + options,
                        Isa::avx512_bf16, kZen4, 2);
      };
      EXPECT_LE(us(" mask=causal"), us(""));
      EXPECT_LE(us(" mask=causal window_left=64"), us(" mask=causal"));
      EXPECT_LE(us(" window_left=64 window_right=64"), us(""));
    }
    const std::string large = std::string(operation) + " dtype=bf16 head_dim=64 num_heads_q=16 seqlen_q=4096";
    const auto ratio = [&](const char* options) {
      return estimate(large + options, Isa::avx512_bf16, kZen4) / estimate(large, Isa::avx512_bf16, kZen4);
    };
    EXPECT_LT(ratio(" mask=causal"), 0.6);
    EXPECT_LT(ratio(" mask=causal window_left=255"), 0.15);
    EXPECT_GT(ratio(" dropout_p=0.1"), 1.5);
  }
}

TEST(CpuEstimates, ShareWorkAmongThreads) {
  const std::string_view large = "attention_forward dtype=f32 head_dim=64 num_heads_q=16 seqlen_q=2048";
  const double one = estimate(large, Isa::avx512, kZen4, 1);
  EXPECT_NEAR(estimate(large, Isa::avx512, kZen4, 2) / one, 0.5, 0.05);
  EXPECT_NEAR(estimate(large, Isa::avx512, kZen4, 8) / one, 0.125, 0.03);
  const std::string_view small = "attention_forward dtype=f32 head_dim=64 seqlen_q=16";
  EXPECT_EQ(estimate(small, Isa::avx512, kZen4, 8), estimate(small, Isa::avx512, kZen4, 1)) << "too small to share";
}

#endif

/// What accepts everything is chosen for nothing, unless it is asked for.
TEST(CpuEstimates, LeaveTheReferenceAndEmulationsBehind) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Explanation explanation = explain(verify::random_problem(seed));
    double reference = 0.0;
    for (const ExplainRow& row : explanation.rows)
      if (row.implementation == "reference") reference = row.estimated_us;
    for (const ExplainRow& row : explanation.rows) {
      if (!row.accepted || row.implementation == "reference") continue;
      EXPECT_LT(row.estimated_us, 1e12) << row.implementation << ": " << to_string(explanation.problem);
      const bool emulated = row.implementation.starts_with("emulation.");
      EXPECT_EQ(row.estimated_us > reference, emulated) << row.implementation << ": " << to_string(explanation.problem);
    }
  }
}

}  // namespace
}  // namespace tilewise::backends::cpu
