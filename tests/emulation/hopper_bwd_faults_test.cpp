// Hopper's backward kernel on its emulated machine, right and with faults planted in it: each one must be caught, by
// the checks or by the result.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../support/dense_call.hpp"
#include "backends/cuda/hopper/bwd_lowering.hpp"
#include "backends/cuda/hopper/kernels.hpp"
#include "device/hopper/bwd.h"
#include "device/hopper/bwd_statistics.h"
#include "device/hopper/machine_host.h"
#include "emulated.hpp"
#include "emulated_maps.hpp"
#include "operations/attention/call.hpp"

namespace tilewise::test {
namespace {

using namespace device;
namespace hopper = backends::hopper;

/// The one fault of the run under way.
enum class Fault {
  none,
  sums_sent_unfenced,
  scores_unfenced,
  refilled_early,
  lost_arrival,
  no_product_wait,
  sums_left_alone,
  other_statistics,
  weights_taken_early,
  draws_overwritten,
  handed_on_early,
  taken_before_staged,
  staged_before_read,
  handed_back_unread,
  turns_come_late,
  blocks_backwards,
  bias_not_expected,
  values_overwritten,
  keys_overwritten,
  gradients_overwritten,
};
Fault g_fault = Fault::none;

/// Two warpgroups of 64 keys each, of the fewest columns; one block works on all tiles of keys.
constexpr HopperBwdConfig kNarrow = [] {
  HopperBwdConfig c;
  c.persistent = 1;
  c.head_dim = c.head_dim_v = 64;
  c.waves = 12;
  c.block_m = 128;
  c.stages = 2;
  c.ranged = 1;
  return c;
}();
/// Tiles of 64 queries, before which dk of the tile of keys before has left.
constexpr HopperBwdConfig kMiddle = [] {
  HopperBwdConfig c = kNarrow;
  c.head_dim = c.head_dim_v = 96;
  c.block_m = 64;
  c.stages = 3;
  return c;
}();
constexpr HopperBwdConfig kDropout = [] {
  HopperBwdConfig c = kNarrow;
  c.persistent = 0;
  c.dropout = 1;
  c.waves = 4 * c.warpgroups();
  return c;
}();
constexpr HopperBwdConfig kSoftcap = [] {
  HopperBwdConfig c = kNarrow;
  c.softcap = 1;
  return c;
}();
constexpr HopperBwdConfig kBiased = [] {
  HopperBwdConfig c = kNarrow;
  c.persistent = 0;
  c.block_m = 64;
  c.stages = 3;
  c.bias_type = kBiasBf16;
  c.bias_boxes = 1;
  return c;
}();
constexpr HopperBwdConfig kOrdered = [] {
  HopperBwdConfig c = kNarrow;
  c.persistent = 0;
  c.ordered = 1;
  c.waves = 4 * c.warpgroups();
  return c;
}();
/// Draws take the warps that would be couriers: those that multiply dQ take turns themselves.
constexpr HopperBwdConfig kOrderedDropout = [] {
  HopperBwdConfig c = kDropout;
  c.ordered = 1;
  return c;
}();
/// Two warpgroups with the same 64 keys.
constexpr HopperBwdConfig kWide = [] {
  HopperBwdConfig c;
  c.head_dim = c.head_dim_v = 192;
  c.shares_keys = 1;
  c.waves = 4 * c.warpgroups();
  c.ranged = 1;
  return c;
}();

constexpr HopperBwdConfig kWideOrdered = [] {
  HopperBwdConfig c = kWide;
  c.ordered = 1;
  return c;
}();
constexpr HopperBwdConfig kWideDropout = [] {
  HopperBwdConfig c = kWide;
  c.dropout = 1;
  return c;
}();

template <HopperBwdConfig C>
struct FaultyBwdSm90 : HostSm90Machine {
  using Block = HopperBwdShared<FaultyBwdSm90, C>;
  /// Whether it is of the warpgroup that adds up dq.
  static bool sums() { return thread() / kWarpgroupThreads == (C.shares_keys ? 1 : 0); }
  /// Whether it is of the one that makes draws.
  static bool draws() { return thread() / kWarpgroupThreads == (C.shares_keys ? 0 : 3); }
  static bool hands_weights(uint64_t* barrier) {
    if constexpr (C.shares_keys) {
      using Shared = HopperBwdShared<FaultyBwdSm90, C>;
      const uint32_t at = shared_address(barrier) - static_cast<uint32_t>(offsetof(Shared, handover));
      return at < sizeof(Shared::handover);
    }
    return false;
  }

  /// Whether it is of the warpgroup that has couriers; none of its other warps waits for stores.
  static bool carries() { return C.couriers() && thread() / kWarpgroupThreads == 3; }
  /// Whether it says that sums are staged, or that they have been read.
  static bool is_of_sums(uint64_t* barrier, bool read) {
    if constexpr (C.couriers()) {
      using Handover = BwdHandover<FaultyBwdSm90, C>;
      const size_t at = shared_address(barrier) - offsetof(Block, handover);
      return read ? at >= offsetof(Handover, read) && at < sizeof(Handover)
                  : at >= offsetof(Handover, staged) && at < offsetof(Handover, read);
    }
    return false;
  }

  /// Whether it is what the draws of the next tile wait for.
  static bool frees_draws(uint64_t* barrier) {
    if constexpr (C.dropout) {
      using Shared = HopperBwdShared<FaultyBwdSm90, C>;
      constexpr auto kEmpty = offsetof(Shared, draw_ring) + offsetof(decltype(Shared::draw_ring), empty);
      return shared_address(barrier) == static_cast<uint32_t>(kEmpty);
    }
    return false;
  }

  static bool is_at(uint64_t* barrier, size_t offset) {
    return shared_address(barrier) == static_cast<uint32_t>(offset);
  }
  /// Of a block that works on one tile of keys after the other.
  static bool waits_in_vain([[maybe_unused]] uint64_t* barrier) {
    if constexpr (C.persistent) {
      if (g_fault == Fault::values_overwritten) return is_at(barrier, offsetof(Block, values_free));
      if (g_fault == Fault::keys_overwritten) return sums() && is_at(barrier, offsetof(Block, keys_done));
    }
    return false;
  }

  static void fence_shared_writes() {
    if (g_fault == (sums() ? Fault::sums_sent_unfenced : Fault::scores_unfenced)) return;
    HostSm90Machine::fence_shared_writes();
  }
  static void wait(uint64_t* barrier, uint32_t parity) {
    if (g_fault == Fault::refilled_early && thread() < kLanes && parity == 0) return;
    if (waits_in_vain(barrier)) return;
    if (g_fault == Fault::draws_overwritten && draws() && frees_draws(barrier)) return;
    if (g_fault == Fault::weights_taken_early && hands_weights(barrier)) return;
    if (g_fault == Fault::taken_before_staged && is_of_sums(barrier, false)) return;
    HostSm90Machine::wait(barrier, parity);
  }
  static bool test(uint64_t* barrier, uint32_t parity) {
    if (g_fault == Fault::staged_before_read && is_of_sums(barrier, true)) return true;
    return HostSm90Machine::test(barrier, parity);
  }
  static void arrive(uint64_t* barrier) {
    if (g_fault == Fault::lost_arrival && thread() == 2 * kWarpgroupThreads) return;
    HostSm90Machine::arrive(barrier);
  }
  static void arrive_and_expect(uint64_t* barrier, int32_t bytes) {
    using Tile = BwdBiasTile<C>;
    const bool misses = g_fault == Fault::bias_not_expected && bytes > Tile::kBytes;
    HostSm90Machine::arrive_and_expect(barrier, misses ? bytes - Tile::kBytes : bytes);
  }
  template <int kPending>
  static void wgmma_wait() {
    if (g_fault != Fault::no_product_wait || sums()) HostSm90Machine::wgmma_wait<kPending>();
  }
  template <int kPending = 0>
  static void wait_stores_read() {
    if (g_fault == Fault::handed_back_unread && carries()) return;
    if (g_fault == (sums() ? Fault::sums_left_alone : Fault::gradients_overwritten)) return;
    HostSm90Machine::wait_stores_read<kPending>();
  }
  static void wait_stores() {
    if (g_fault != Fault::handed_on_early) HostSm90Machine::wait_stores();
  }
  static uint32_t peek_global(const uint32_t* word) {
    return g_fault == Fault::turns_come_late ? 0 : HostSm90Machine::peek_global(word);
  }
  static int block() {
    const int block = HostSm90Machine::block();
    return g_fault == Fault::blocks_backwards ? blocks() - 1 - block : block;
  }
  static void copy_run(void* to, const void* from, int32_t bytes, uint64_t* landed) {
    const int more = g_fault == Fault::other_statistics ? 16 : 0;
    HostSm90Machine::copy_run(to, static_cast<const float*>(from) + more, bytes, landed);
  }
};

constexpr std::int64_t kHeads = 2, kQueries = 300, kKeys = 200, kRows = 384;

/// A causal call of lengths that no tile divides.
template <HopperBwdConfig C = kNarrow>
class BwdCall {
  using Machine = FaultyBwdSm90<C>;
  static constexpr std::int64_t kDim = C.head_dim;

 public:
  BwdCall()
      : expected_(sizes()),
        call_(sizes()),
        lse2_(kHeads * kRows, INFINITY),
        delta_(kHeads * kRows),
        dq_accum_(kHeads * kRows * kDim),
        turns_(kHeads * (kRows / C.block_m) * 4) {
    for (DenseCall* c : {&expected_, &call_}) {
      c->options.mask = Mask::causal;
      c->options.deterministic = C.ordered != 0;
      if (C.dropout) c->options.dropout_p = 0.25;
      if (C.softcap) c->options.softcap = 2.0;
      if (C.bias_boxes) c->bias = c->normal(DType::bf16, {1, kHeads, kQueries, kKeys});
      c->forward();
      c->prepare_backward();
    }
    expected_.backward();
    draw_statistics();
    const BackwardArguments arguments = call_.backward_arguments();
    const operations::attention::Call described = operations::attention::call_of(arguments);
    const Problem problem = operations::attention::describe(described);
    params_of_call_ = operations::attention::make_params(described, problem);
    core::DeviceDescription device;
    device.shared_bytes = 227 << 10;
    device.multiprocessors = C.persistent ? 1 : 4;
    launch_ = *hopper::lower_backward(problem, device).lowering.launches().at(1);
    std::memcpy(static_cast<void*>(&params_), launch_.params.data(), sizeof params_);
    launch_.bind(&params_of_call_, &params_);
    params_.lse2 = lse2_.data();
    params_.delta = delta_.data();
    params_.dq_accum = dq_accum_.data();
    if (C.ordered) params_.turns = turns_.data();
    // Tiles of 128 queries each have one that sees a key, by which their sums begin.
    if (C.ordered && C.block_m == 128) std::ranges::fill(dq_accum_, NAN);
    if (C.persistent) params_.tile_counter = &tile_counter_;
  }

  /// What went wrong in a run with that fault, or empty.
  std::string run(Fault fault = Fault::none, std::uint64_t seed = 0) {
    using Kernel = HopperBwd<Sm90Ops<Machine>, C>;
    g_fault = fault;
    tile_counter_ = 0;
    write_maps(launch_, &params_of_call_, params_);
    memory_ = backends::emulation::memory_of(gpu::body_of<hopper::Bwd>(), &params_);
    return fault_of(host_kernel<Kernel, Machine>(), C.threads(), static_cast<int>(launch_.grid.x), seed, memory_,
                    &params_);
  }

  /// Largest difference to the reference, of any gradient.
  [[nodiscard]] double error() const {
    double largest = std::max(largest_difference(call_.dk, expected_.dk), largest_difference(call_.dv, expected_.dv));
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kQueries; ++i) {
        for (std::int64_t d = 0; d < kDim; ++d) {
          const double difference = std::abs(dq(h, i, d) - expected_.dq.get({0, i, h, d}));
          largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
        }
      }
    }
    return largest;
  }

 private:
  static Sizes sizes() {
    return {.seqlen_q = kQueries,
            .seqlen_k = kKeys,
            .heads_q = kHeads,
            .heads_k = kHeads,
            .dim = kDim,
            .dim_v = kDim,
            .dtype = DType::bf16};
  }

  void draw_statistics() {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kQueries; ++i) {
        const auto at = static_cast<std::size_t>(h * kRows + statistic_place(i));
        const double lse = call_.lse.get({0, h, i});
        double delta = 0.0;
        for (std::int64_t d = 0; d < kDim; ++d) delta += call_.out.get({0, i, h, d}) * call_.dout.get({0, i, h, d});
        lse2_[at] = std::isinf(lse) ? INFINITY : static_cast<float>(lse / std::log(2.0));
        delta_[at] = static_cast<float>(delta);
      }
    }
  }

  /// The sums lie by 16 queries and 8 columns, as a warp's lanes hold them.
  [[nodiscard]] double dq(std::int64_t h, std::int64_t i, std::int64_t d) const {
    const std::int64_t lane = i % 8 * 4 + d % 8 / 2, reg = i % 16 / 8 * 2 + d % 2;
    const std::int64_t at = h * kRows * kDim + i / 16 * (16 * kDim) + d / 8 * 128 + lane * 4 + reg;
    return dq_accum_[static_cast<std::size_t>(at)] * params_of_call_.softmax_scale;
  }

  DenseCall expected_, call_;
  std::vector<float> lse2_, delta_, dq_accum_;
  std::vector<std::uint32_t> turns_;
  std::uint32_t tile_counter_ = 0;
  AttentionParams params_of_call_{};
  HopperBwdParams params_{};
  gpu::Launch launch_;
  backends::emulation::GlobalMemory memory_;
};

/// Gradients of some units, rounded to bf16 up to four times on their way.
constexpr double kFine = 0.05, kWrong = 0.3;

template <HopperBwdConfig C = kNarrow>
std::string fault_of_run(Fault fault) {
  return BwdCall<C>().run(fault);
}

TEST(EmulatedHopperBwd, IsRightInAnyOrder) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    BwdCall<> call;
    EXPECT_EQ(call.run(Fault::none, seed), "");
    EXPECT_LT(call.error(), kFine);
    BwdCall<kMiddle> middle;
    EXPECT_EQ(middle.run(Fault::none, seed), "");
    EXPECT_LT(middle.error(), kFine);
    BwdCall<kWide> wide;
    EXPECT_EQ(wide.run(Fault::none, seed), "");
    EXPECT_LT(wide.error(), kFine);
    BwdCall<kDropout> dropout;
    EXPECT_EQ(dropout.run(Fault::none, seed), "");
    EXPECT_LT(dropout.error(), kFine);
    BwdCall<kWideDropout> wide_dropout;
    EXPECT_EQ(wide_dropout.run(Fault::none, seed), "");
    EXPECT_LT(wide_dropout.error(), kFine);
    BwdCall<kSoftcap> softcap;
    EXPECT_EQ(softcap.run(Fault::none, seed), "");
    EXPECT_LT(softcap.error(), kFine);
    BwdCall<kBiased> biased;
    EXPECT_EQ(biased.run(Fault::none, seed), "");
    EXPECT_LT(biased.error(), kFine);
    BwdCall<kOrdered> ordered;
    EXPECT_EQ(ordered.run(Fault::none, seed), "");
    EXPECT_LT(ordered.error(), kFine);
    BwdCall<kOrderedDropout> ordered_dropout;
    EXPECT_EQ(ordered_dropout.run(Fault::none, seed), "");
    EXPECT_LT(ordered_dropout.error(), kFine);
    BwdCall<kWideOrdered> wide_ordered;
    EXPECT_EQ(wide_ordered.run(Fault::none, seed), "");
    EXPECT_LT(wide_ordered.error(), kFine);
  }
}

TEST(EmulatedHopperBwd, SumsThatAreSentBeforeTheirFenceAreCaught) {
  const std::string fault = fault_of_run(Fault::sums_sent_unfenced);
  EXPECT_TRUE(contains(fault, "a store reads offset"));
  EXPECT_TRUE(contains(fault, "with no fence_shared_writes() since it was written by wave"));
}

TEST(EmulatedHopperBwd, ScoresThatAreNotFencedAreCaught) {
  EXPECT_TRUE(contains(fault_of_run(Fault::scores_unfenced), "with no fence_shared_writes() since it was written by"));
}

TEST(EmulatedHopperBwd, AStageThatIsFilledBeforeItIsEmptyIsCaught) {
  EXPECT_NE(fault_of_run(Fault::refilled_early), "");
  EXPECT_NE(fault_of_run<kBiased>(Fault::refilled_early), "");
}

/// A stage is full without its bias then.
TEST(EmulatedHopperBwd, ABiasThatIsNotExpectedIsCaught) {
  EXPECT_TRUE(contains(fault_of_run<kBiased>(Fault::bias_not_expected), "bytes"));
}

TEST(EmulatedHopperBwd, ALostArrivalNamesItsBarrier) {
  EXPECT_TRUE(contains(fault_of_run(Fault::lost_arrival), "which lacks 1 of 8 arrivals"));
}

/// A stage of Q and dO that is handed back while products still read it, among others.
TEST(EmulatedHopperBwd, ProductsThatNobodyWaitsForAreCaught) {
  EXPECT_NE(fault_of_run(Fault::no_product_wait), "");
  EXPECT_NE(fault_of_run<kSoftcap>(Fault::no_product_wait), "");
}

TEST(EmulatedHopperBwd, SumsThatNobodyWaitsForAreCaught) { EXPECT_NE(fault_of_run(Fault::sums_left_alone), ""); }

TEST(EmulatedHopperBwd, FaultsOfWideHeadsAreCaught) {
  EXPECT_TRUE(
      contains(fault_of_run<kWide>(Fault::scores_unfenced), "with no fence_shared_writes() since it was written by"));
  EXPECT_NE(fault_of_run<kWide>(Fault::refilled_early), "");
  EXPECT_TRUE(contains(fault_of_run<kWide>(Fault::lost_arrival), "which lacks 1 of 32 arrivals"));
  EXPECT_NE(fault_of_run<kWide>(Fault::no_product_wait), "");
  EXPECT_NE(fault_of_run<kWide>(Fault::weights_taken_early), "");
  EXPECT_NE(fault_of_run<kWideDropout>(Fault::refilled_early), "");
}

TEST(EmulatedHopperBwd, DrawsThatAreOverwrittenBeforeTheyAreReadAreCaught) {
  EXPECT_NE(fault_of_run<kDropout>(Fault::draws_overwritten), "");
  EXPECT_NE(fault_of_run<kWideDropout>(Fault::draws_overwritten), "");
}

TEST(EmulatedHopperBwd, ATurnThatIsHandedOnBeforeTheSumsHaveArrivedIsCaught) {
  EXPECT_TRUE(contains(fault_of_run<kOrdered>(Fault::handed_on_early), "of its stores are under way"));
  EXPECT_TRUE(contains(fault_of_run<kOrderedDropout>(Fault::handed_on_early), "of its stores are under way"));
}

/// Between those that multiply dQ and those that take its sums to memory.
TEST(EmulatedHopperBwd, FaultsOfCouriersAreCaught) {
  EXPECT_TRUE(contains(fault_of_run<kOrdered>(Fault::sums_sent_unfenced), "with no fence_shared_writes() since"));
  EXPECT_TRUE(contains(fault_of_run<kOrdered>(Fault::taken_before_staged), "which nobody wrote"));
  EXPECT_TRUE(contains(fault_of_run<kOrdered>(Fault::staged_before_read), "since it was read by a store"));
  EXPECT_TRUE(contains(fault_of_run<kOrdered>(Fault::handed_back_unread), "since it was read by a store"));
}

/// No fault: who has looked in vain waits.
TEST(EmulatedHopperBwd, TurnsMayComeLate) {
  BwdCall<kOrderedDropout> call;
  EXPECT_EQ(call.run(Fault::turns_come_late), "");
  EXPECT_LT(call.error(), kFine);
  BwdCall<kWideOrdered> wide;
  EXPECT_EQ(wide.run(Fault::turns_come_late), "");
  EXPECT_LT(wide.error(), kFine);
}

/// The first tile of keys finds that the one behind has not added yet.
TEST(EmulatedHopperBwd, TurnsAreWaitedFor) {
  EXPECT_TRUE(contains(fault_of_run<kOrdered>(Fault::blocks_backwards), "waits for 2 in memory that holds 0"));
  EXPECT_TRUE(contains(fault_of_run<kOrderedDropout>(Fault::blocks_backwards), "waits for 2 in memory that holds 0"));
}

/// What the next tile of keys brings meets what the one before has left, or still reads.
TEST(EmulatedHopperBwd, FaultsBetweenTwoTilesOfKeysAreCaught) {
  EXPECT_TRUE(contains(fault_of_run(Fault::values_overwritten), "copies to offset"));
  EXPECT_TRUE(contains(fault_of_run(Fault::keys_overwritten), "since it was read by a product of wave"));
  EXPECT_NE(fault_of_run(Fault::gradients_overwritten), "");
  EXPECT_TRUE(contains(fault_of_run<kMiddle>(Fault::values_overwritten), "copies to offset"));
  EXPECT_TRUE(contains(fault_of_run<kMiddle>(Fault::keys_overwritten), "since it was read by a product of wave"));
  EXPECT_NE(fault_of_run<kMiddle>(Fault::gradients_overwritten), "");
}

TEST(EmulatedHopperBwd, StatisticsOfOtherQueriesAreCaughtByTheResult) {
  BwdCall<> call;
  const std::string fault = call.run(Fault::other_statistics);
  EXPECT_TRUE(!fault.empty() || call.error() > kWrong);
}

}  // namespace
}  // namespace tilewise::test
