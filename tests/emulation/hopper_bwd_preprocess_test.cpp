// What Hopper's backward pass begins with, on its emulated machine: right in any order of events, and with faults
// planted in it, each of which must be caught.
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "../support/dense_call.hpp"
#include "backends/cuda/hopper/bwd_lowering.hpp"
#include "backends/cuda/hopper/kernels.hpp"
#include "described_call.hpp"
#include "device/hopper/bwd_preprocess.h"
#include "device/sm90/machine_host.h"
#include "emulated.hpp"
#include "emulated_maps.hpp"

namespace tilewise::test {
namespace {

using namespace device;
namespace hopper = backends::hopper;

enum class PreprocessFault { none, made_unread, overwritten_early, told_early, sums_told_early, lost_arrival };
PreprocessFault g_fault = PreprocessFault::none;

template <HopperBwdPreprocessConfig C>
struct FaultyPreprocessSm90 : HostSm90Machine {
  using Block = HopperBwdPreprocessShared<FaultyPreprocessSm90, C>;
  /// Whether it is one of the barriers that begin there.
  static bool is_among(uint64_t* barrier, size_t offset) {
    return shared_address(barrier) - static_cast<uint32_t>(offset) < C.kStages * sizeof(*barrier);
  }
  static void wait(uint64_t* barrier, uint32_t parity) {
    using Stages = Ring<FaultyPreprocessSm90, C.kStages>;
    const size_t ring = offsetof(Block, ring);
    if (g_fault == PreprocessFault::made_unread && is_among(barrier, ring + offsetof(Stages, full))) return;
    if (g_fault == PreprocessFault::overwritten_early && is_among(barrier, ring + offsetof(Stages, empty))) return;
    if (g_fault == PreprocessFault::told_early && is_among(barrier, offsetof(Block, made))) return;
    HostSm90Machine::wait(barrier, parity);
  }
  static void arrive(uint64_t* barrier) {
    const bool lost = g_fault == PreprocessFault::lost_arrival && thread() == C.kOtherWarps * kLanes;
    if (!lost) HostSm90Machine::arrive(barrier);
  }
  static void wait_stores() {
    if (g_fault != PreprocessFault::sums_told_early) HostSm90Machine::wait_stores();
  }
};

constexpr HopperBwdPreprocessConfig config_of(int32_t head_dim) {
  HopperBwdConfig c;
  c.head_dim = c.head_dim_v = head_dim;
  return preprocess_config(c);
}

/// Of two heads by both blocks, of the others by one.
template <int32_t kDim>
class PreprocessCall {
  static constexpr HopperBwdPreprocessConfig kConfig = config_of(kDim);
  using Machine = FaultyPreprocessSm90<kConfig>;
  static constexpr std::int64_t kHeads = 6, kQueries = 600;

 public:
  PreprocessCall() : call_(sizes()) {
    call_.options.mask = Mask::causal;  // dq's sums have no order, and are cleared
    call_.forward();
    call_.prepare_backward();
    const auto [problem, params] = described_call(call_.backward_arguments());
    params_of_call_ = params;
    core::DeviceDescription device;
    device.shared_bytes = 227 << 10;
    device.multiprocessors = kBlocks;
    launch_ = *hopper::lower_backward(problem, device).lowering.launches().at(0);
    bind_params(launch_, &params_of_call_, params_);
    params_.first_tiles = 2 * params_.grid.num_tiles;
    params_.late_blocks = 1;
    const auto rows = static_cast<std::size_t>(kHeads * params_.rows_a_head);
    lse2_.assign(rows, NAN), delta_.assign(rows, NAN);
    dq_accum_.assign(static_cast<std::size_t>(kHeads * params_.dq_accum_a_head), NAN);
    words_.assign(static_cast<std::size_t>(params_.tiles), 7U);
    turns_.assign(static_cast<std::size_t>(params_.all_turns), 7U);
    params_.lse2 = lse2_.data(), params_.delta = delta_.data(), params_.dq_accum = dq_accum_.data();
    params_.tiles_done = words_.data(), params_.tile_counter = counters_;
    if (params_.all_turns > 0) params_.turns = turns_.data();
  }

  std::string run(PreprocessFault fault, std::uint64_t seed = 0) {
    using Kernel = HopperBwdPreprocess<Sm90Ops<Machine>, kConfig>;
    g_fault = fault;
    write_maps(launch_, &params_of_call_, params_);
    memory_ = backends::emulation::memory_of(gpu::body_of<hopper::BwdPreprocess>(), &params_);
    return fault_of(host_kernel<Kernel, Machine>(), kConfig.kThreads, static_cast<int>(launch_.grid.x), seed, memory_,
                    &params_, 1, kBlocks);
  }

  void expect_right() const {
    for (const std::uint32_t word : words_) EXPECT_EQ(word, 1U);
    for (const std::uint32_t word : turns_) EXPECT_EQ(word, 0U);
    EXPECT_EQ(counters_[0], 0U);
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kQueries; ++i) {
        const auto at = static_cast<std::size_t>(h * params_.rows_a_head + statistic_place(i));
        double delta = 0.0;
        for (std::int64_t d = 0; d < kDim; ++d) delta += call_.out.get({0, i, h, d}) * call_.dout.get({0, i, h, d});
        const double lse = call_.lse.get({0, h, i});
        if (std::isinf(lse)) {  // it sees no key
          ASSERT_EQ(lse2_[at], INFINITY) << h << ", " << i;
          ASSERT_EQ(delta_[at], 0.0F) << h << ", " << i;
        } else {
          ASSERT_NEAR(lse2_[at], lse / std::log(2.0), 1e-5) << h << ", " << i;
          ASSERT_NEAR(delta_[at], delta, 1e-4) << h << ", " << i;
        }
      }
    }
    for (const float sum : dq_accum_) ASSERT_EQ(sum, 0.0F);
  }

 private:
  static constexpr int kBlocks = 2;
  static Sizes sizes() {
    return {.seqlen_q = kQueries,
            .seqlen_k = 300,
            .heads_q = kHeads,
            .heads_k = kHeads,
            .dim = kDim,
            .dim_v = kDim,
            .dtype = DType::bf16};
  }

  DenseCall call_;
  std::vector<float> lse2_, delta_, dq_accum_;
  std::vector<std::uint32_t> words_, turns_;
  std::uint32_t counters_[2] = {7, 7};
  AttentionParams params_of_call_{};
  HopperBwdPreprocessParams params_{};
  gpu::Launch launch_;
  backends::emulation::GlobalMemory memory_;
};

template <int32_t kDim>
void expect_right(std::uint64_t seed) {
  PreprocessCall<kDim> call;
  ASSERT_EQ(call.run(PreprocessFault::none, seed), "");
  call.expect_right();
}
/// Tiles of 256, 128 and 64 queries.
TEST(EmulatedHopperBwdPreprocess, AreRightInAnyOrder) {
  for (std::uint64_t seed = 0; seed < 3; ++seed)
    expect_right<64>(seed), expect_right<128>(seed), expect_right<256>(seed);
}

std::string fault_of_preprocess(PreprocessFault fault) { return PreprocessCall<128>().run(fault); }

TEST(EmulatedHopperBwdPreprocess, ATileThatHasNotLandedIsNotRead) {
  EXPECT_TRUE(contains(fault_of_preprocess(PreprocessFault::made_unread), "of shared memory"));
}
TEST(EmulatedHopperBwdPreprocess, AStageThatIsFilledBeforeItIsReadIsCaught) {
  EXPECT_NE(fault_of_preprocess(PreprocessFault::overwritten_early), "");
}
/// Its stage would be the next tile's while it is read.
TEST(EmulatedHopperBwdPreprocess, ATileThatIsToldBeforeItIsMadeIsCaught) {
  EXPECT_NE(fault_of_preprocess(PreprocessFault::told_early), "");
}
TEST(EmulatedHopperBwdPreprocess, SumsThatAreToldBeforeTheyAreClearIsCaught) {
  EXPECT_TRUE(contains(fault_of_preprocess(PreprocessFault::sums_told_early), "of its stores are under way"));
}
TEST(EmulatedHopperBwdPreprocess, ALostArrivalNamesItsBarrier) {
  EXPECT_TRUE(contains(fault_of_preprocess(PreprocessFault::lost_arrival), "lacks 1 of 8 arrivals"));
}

}  // namespace
}  // namespace tilewise::test
