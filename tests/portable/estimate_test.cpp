// What the portable kernels are estimated to take on a GPU: near the published times of an H200, growing with the
// work, and scaled to other devices. Nothing is timed.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>

#include "support.hpp"
#include "verify/verify.hpp"

namespace tilewise::backends::portable {
namespace {

double estimate(std::string_view architecture, std::string_view text) {
  return lowered(architecture, text).estimated_us;
}

/// Figures of docs/benchmarks.
struct Measured {
  const char* problem;
  double us;
};

constexpr Measured kMeasured[] = {
    {"attention_forward batch_size=32 seqlen_q=512 num_heads_q=32 head_dim=64", 262.3},
    {"attention_forward seqlen_q=16384 num_heads_q=32 head_dim=64", 6506.0},
    {"attention_forward batch_size=32 seqlen_q=512 num_heads_q=32 head_dim=64 mask=causal", 205.7},
    {"attention_forward batch_size=4 seqlen_q=4096 num_heads_q=16 head_dim=128", 1498.0},
    {"attention_forward batch_size=16 seqlen_q=1024 num_heads_q=16 head_dim=128 mask=causal", 280.5},
    {"attention_forward batch_size=32 seqlen_q=512 num_heads_q=8 head_dim=256", 264.3},
    {"attention_forward seqlen_q=16384 num_heads_q=8 head_dim=256 mask=causal", 3282.1},
    {"attention_backward batch_size=32 seqlen_q=512 num_heads_q=32 head_dim=64", 826.0},
    {"attention_backward batch_size=32 seqlen_q=512 num_heads_q=32 head_dim=64 mask=causal", 622.5},
    {"attention_backward batch_size=4 seqlen_q=4096 num_heads_q=16 head_dim=128", 4506.2},
    {"attention_backward batch_size=8 seqlen_q=2048 num_heads_q=8 head_dim=256 mask=causal", 1605.6},
    {"attention_backward seqlen_q=16384 num_heads_q=8 head_dim=256", 21729.5},
    {"attention_forward seqlen_q=1 seqlen_k=4096 num_heads_q=32 num_heads_k=8 head_dim=128", 19.8},
    {"attention_forward seqlen_q=1 seqlen_k=16384 num_heads_q=32 num_heads_k=8 head_dim=128", 32.3},
    {"attention_forward batch_size=64 seqlen_q=1 seqlen_k=4096 num_heads_q=32 num_heads_k=8 head_dim=128", 273.1},
    {"attention_forward batch_size=64 seqlen_q=1 seqlen_k=16384 num_heads_q=32 num_heads_k=8 head_dim=128", 1077.9},
    {"attention_backward batch_size=4 seqlen_q=4096 num_heads_q=16 num_heads_k=4 head_dim=128 mask=causal", 2899.6},
    {"attention_forward batch_size=4 seqlen_q=4096 num_heads_q=16 head_dim=128 mask=causal window_left=1024", 428.4},
    {"attention_forward batch_size=4 seqlen_q=4096 num_heads_q=16 head_dim=128 mask=causal dropout_p=0.1", 1205.6},
    {"attention_backward batch_size=4 seqlen_q=4096 num_heads_q=16 head_dim=128 mask=causal softcap=30", 2694.9},
    // Few blocks: the latency of one, a causal mask's longest one, and sums that many blocks add to.
    {"attention_forward batch_size=8 seqlen_q=128 num_heads_q=16 head_dim=64", 10.8},
    {"attention_forward batch_size=8 seqlen_q=128 num_heads_q=16 head_dim=128 mask=causal", 15.4},
    {"attention_forward seqlen_q=2048 num_heads_q=8 head_dim=128 mask=causal", 67.9},
    {"attention_forward batch_size=4 seqlen_q=1 seqlen_k=4096 num_heads_q=32 num_heads_k=8 head_dim=64", 22.6},
    {"attention_backward seqlen_q=4096 num_heads_q=2 head_dim=64", 93.6},
    {"attention_backward seqlen_q=64 seqlen_k=4096 num_heads_q=16 num_heads_k=4 head_dim=96", 33.6},
    {"attention_backward batch_size=4 seqlen_q=1 seqlen_k=4096 num_heads_q=32 num_heads_k=8 head_dim=64", 201.1},
};

TEST(GpuEstimates, AreWithinAThirdOfPublishedTimes) {
  for (const Measured& row : kMeasured) {
    const double ratio = estimate("sm_90a", std::string(row.problem) + " dtype=bf16") / row.us;
    EXPECT_GT(ratio, 0.67) << row.problem;
    EXPECT_LT(ratio, 1.5) << row.problem;
  }
}

TEST(GpuEstimates, ArePositiveAndFinite) {
  verify::Filter filter;
  filter.features = attention_features();
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Problem problem = verify::random_problem(seed, filter);
    for (const std::string_view architecture : kArchitectures) {
      problem.device = device_of(architecture).device.type;
      const Outcome lowered = outcome(architecture, problem);
      if (!lowered.refusal.empty()) continue;
      const double us = lowered.lowering.estimated_us;
      EXPECT_TRUE(std::isfinite(us) && us > 0.0 && us < 1e6)
          << architecture << ": " << us << ", " << to_string(problem);
    }
  }
}

/// Twice the work never takes less, whatever tiles and splits the schedule then chooses.
TEST(GpuEstimates, GrowWithTheWork) {
  for (const std::string_view architecture : kMachines) {
    for (const std::string_view options :
         {"attention_forward head_dim=64", "attention_forward head_dim=128 mask=causal",
          "attention_backward head_dim=64", "attention_backward head_dim=128 mask=causal",
          "attention_backward head_dim=256 deterministic=1"}) {
      const auto us = [&](int batch, int heads, int seqlen) {
        return estimate(architecture, core::concat(options, " dtype=bf16 batch_size=", batch, " num_heads_q=", heads,
                                                   " seqlen_q=", seqlen));
      };
      for (const int seqlen : {64, 128, 512, 2048}) {
        for (const int batch : {1, 4, 16}) {
          for (const int heads : {4, 16, 64}) {
            const double once = us(batch, heads, seqlen);
            const std::string where = core::concat(architecture, " ", options, " ", batch, " ", heads, " ", seqlen);
            EXPECT_LE(once, us(2 * batch, heads, seqlen)) << where;
            EXPECT_LE(once, us(batch, 2 * heads, seqlen)) << where;
            EXPECT_LE(once, us(batch, heads, 2 * seqlen)) << where;
          }
        }
      }
    }
  }
}

TEST(GpuEstimates, CountWhatMasksHide) {
  for (const std::string_view architecture : kArchitectures) {
    for (const std::string_view operation : {"attention_forward", "attention_backward"}) {
      for (const int seqlen : {64, 512, 4096}) {
        const auto us = [&](std::string_view options) {
          return estimate(architecture, core::concat(operation, " dtype=bf16 head_dim=128 num_heads_q=16 batch_size=4",
                                                     " seqlen_q=", seqlen, options));
        };
        EXPECT_LE(us(" mask=causal"), us("")) << architecture << " " << operation << " " << seqlen;
        EXPECT_LE(us(" mask=causal window_left=255"), us(" mask=causal")) << architecture << " " << seqlen;
        EXPECT_GE(us(" dropout_p=0.1"), us("")) << architecture << " " << seqlen;
      }
    }
  }
}

/// Arithmetic goes by multiprocessors and clock, decoding by the memory.
TEST(GpuEstimates, ScaleWithTheDevice) {
  const auto on = [](const core::DeviceDescription& device, std::string_view text) {
    return lower(parse_problem(core::concat(text, " dtype=bf16 device=cuda")), device, Family::sm80)
        .lowering.estimated_us;
  };
  const core::DeviceDescription h200 = device_of("sm_90a");
  core::DeviceDescription slow_memory = h200, half = h200;
  slow_memory.memory_gigabytes_per_second /= 2.0;
  half.multiprocessors /= 2;
  const std::string_view prefill = "attention_forward batch_size=4 seqlen_q=4096 num_heads_q=16 head_dim=128";
  const std::string_view decode =
      "attention_forward batch_size=64 seqlen_q=1 seqlen_k=4096 num_heads_q=32 num_heads_k=8 head_dim=128";
  EXPECT_NEAR(on(half, prefill) / on(h200, prefill), 2.0, 0.1);
  EXPECT_NEAR(on(slow_memory, prefill) / on(h200, prefill), 1.0, 0.1);
  EXPECT_NEAR(on(slow_memory, decode) / on(h200, decode), 2.0, 0.1);
}

}  // namespace
}  // namespace tilewise::backends::portable
