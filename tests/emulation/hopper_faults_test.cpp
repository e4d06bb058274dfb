// Hopper's forward kernel on its emulated machine, right and with faults planted in it that this machine makes
// possible: each one must be caught, by the checks or by the result.
#include <array>
#include <cmath>

#include "../support/dense_call.hpp"
#include "backends/cuda/hopper/lowering.hpp"
#include "backends/cuda/hopper/schedule.hpp"
#include "cluster_faults.hpp"
#include "described_call.hpp"
#include "device/hopper/forward.h"
#include "device/sm90/machine_host.h"
#include "emulated.hpp"
#include "emulated_maps.hpp"

namespace tilewise::test {
namespace {

using namespace device;
namespace hopper = backends::hopper;

/// The one fault of the run under way.
enum class Fault {
  none,
  too_few_bytes,
  too_many_bytes,
  refilled_early,
  no_wait_for_tiles,
  lost_arrival,
  arrival_too_many,
  phase_waited_for_twice,
  unpublished,
  no_proxy_fence,
  no_product_fence,
  no_product_wait,
  short_product_wait,
  lost_turn,
  stores_left_alone,
  registers_too_many,
  other_swizzle,
  rowless_not_together,
  drawn_early,    // what draws of dropout have in common, over what is still read
  half_expected,  // of two blocks that share keys
};
Fault g_fault = Fault::none;

using FaultyPairSm90 = FaultyClusterSm90<384, 8>;

struct FaultySm90 : FaultyPairSm90 {
  /// The thread that loads queries and keys, and one that tells of what it has used.
  static bool produces() { return thread() == 0; }
  static bool consumes() { return thread() == 2 * kWarpgroupThreads; }
  static bool draws() { return thread() / kLanes == 2; }

  static void arrive_and_expect(uint64_t* barrier, int32_t bytes) {
    const int32_t more = g_fault == Fault::too_few_bytes ? -128 : g_fault == Fault::too_many_bytes ? 128 : 0;
    const bool values = thread() / 32 == 1, half = g_fault == Fault::half_expected && rank_in_cluster() == 1 && values;
    HostSm90Machine::arrive_and_expect(barrier, half ? bytes / 2 : bytes + more);
  }
  static void arrive(uint64_t* barrier) {
    if (g_fault == Fault::lost_arrival && consumes()) return;
    HostSm90Machine::arrive(barrier);
    if (g_fault == Fault::arrival_too_many && consumes()) HostSm90Machine::arrive(barrier);
  }
  static void wait(uint64_t* barrier, uint32_t parity) {
    if (g_fault == Fault::refilled_early && produces()) return;
    if (g_fault == Fault::drawn_early && draws() && parity == 1) return;
    if (g_fault == Fault::no_wait_for_tiles && thread() >= kWarpgroupThreads && parity == 0) return;
    HostSm90Machine::wait(barrier, parity);
    if (g_fault == Fault::phase_waited_for_twice && consumes()) HostSm90Machine::wait(barrier, parity);
  }
  static void publish_barriers() {
    if (g_fault != Fault::unpublished) HostSm90Machine::publish_barriers();
  }
  static void named_barrier_sync(int number, int threads) {
    const bool rowless = number > kWarpgroup || (number == kWarpgroup && rank_in_cluster() == 1);
    if (g_fault != Fault::rowless_not_together || !rowless) HostSm90Machine::named_barrier_sync(number, threads);
  }
  static void named_barrier_arrive(int number, int threads) {
    if (g_fault != Fault::lost_turn || !consumes()) HostSm90Machine::named_barrier_arrive(number, threads);
  }
  template <int kRegisters>
  static void alloc_registers() {
    HostSm90Machine::alloc_registers<kRegisters>();
    if (g_fault == Fault::registers_too_many) HostSm90Machine::alloc_registers<kRegisters + 8>();
  }
  static void fence_shared_writes() {
    if (g_fault != Fault::no_proxy_fence) HostSm90Machine::fence_shared_writes();
  }
  template <int kPending = 0>
  static void wait_stores_read() {
    if (g_fault != Fault::stores_left_alone) HostSm90Machine::wait_stores_read<kPending>();
  }
  static void wgmma_fence() {
    if (g_fault != Fault::no_product_fence) HostSm90Machine::wgmma_fence();
  }
  template <int kPending>
  static void wgmma_wait() {
    if (g_fault == Fault::no_product_wait) return;
    if (g_fault == Fault::short_product_wait) return HostSm90Machine::wgmma_wait<kPending + 1>();
    HostSm90Machine::wgmma_wait<kPending>();
  }
};

/// Two consumer warpgroups, tiles of 64 keys, two of them on their way; lengths in device memory, so that the end of
/// the values is cleared.
constexpr HopperForwardConfig kConfig = [] {
  HopperForwardConfig c;
  c.head_dim = c.head_dim_v = 64;
  c.waves = 12;
  c.block_n = 64;
  c.stages = 2;
  c.ranged = c.lengths = c.plain_scale = 1;
  return c;
}();
/// Likewise, of blocks that share keys.
constexpr HopperForwardConfig kPairConfig = [] {
  HopperForwardConfig c = kConfig;
  c.ranged = c.lengths = c.dynamic = 0;
  c.clustered = 1;
  return c;
}();
/// With dropout, whose draws have something in common that a warp leaves beside K.
constexpr HopperForwardConfig kDropConfig = [] {
  HopperForwardConfig c = kConfig;
  c.ranged = c.lengths = c.dynamic = 0;
  c.dropout = c.normal_bound = 1;
  return c;
}();
static_assert(kDropConfig.shares_draws());
/// Of blocks alone, whose warpgroups meet nowhere: no ping-pong.
constexpr HopperForwardConfig kAloneConfig = [] {
  HopperForwardConfig c = kConfig;
  c.ranged = c.lengths = c.dynamic = c.ping_pong = 0;
  c.stages = 3;
  return c;
}();

constexpr Sizes kSizes{.seqlen_q = 200, .seqlen_k = 310, .heads_q = 2, .dim = 64, .dim_v = 64, .dtype = DType::bf16};

/// A call of lengths that no tile divides, causal where the config is: two tiles of queries for each head, and two
/// blocks.
template <HopperForwardConfig kConfig = test::kConfig>
class HopperCall {
 public:
  explicit HopperCall(const Sizes& sizes = kSizes) : expected(sizes), call(sizes) {
    if (kConfig.ranged) expected.options.mask = call.options.mask = Mask::causal;
    if (kConfig.dropout) expected.options.dropout_p = call.options.dropout_p = 0.25;
    expected.forward();
    const auto [problem, params_of_call] = described_call(call.forward_arguments());
    params_of_call_ = params_of_call;
    lower(problem);
  }

  /// What went wrong in a run with that fault, or empty.
  std::string run(Fault fault = Fault::none, std::uint64_t seed = 0, ClusterFault of_cluster = ClusterFault::none) {
    using Kernel = HopperForward<Sm90Ops<FaultySm90>, kConfig>;
    g_fault = fault;
    FaultyPairSm90::begin_run(of_cluster);
    write_maps(launch_, &params_of_call_, params, [fault](gpu::TensorMap& map) {
      if (fault == Fault::other_swizzle) map.swizzle = gpu::Swizzle::none;
    });
    memory_ = backends::emulation::memory_of(gpu::body_of<hopper::Forward>(), &params);
    return fault_of(host_kernel<Kernel, FaultySm90>(), kConfig.threads(), kBlocks, seed, memory_, &params,
                    kConfig.blocks_of_cluster());
  }

  /// Largest difference to the reference.
  [[nodiscard]] double error() const { return largest_difference(call.out, expected.out); }

  DenseCall expected, call;
  HopperForwardParams params{};
  alignas(8) std::array<std::uint32_t, kCounterWords> counter{};

 private:
  static constexpr int kBlocks = 2;

  /// As the library does, for the config of this test.
  void lower(const Problem& problem) {
    core::DeviceDescription device;
    device.shared_bytes = 227 << 10;
    device.multiprocessors = kBlocks;
    launch_ = *hopper::lower(problem, device).lowering.launches().at(0);
    bind_params(launch_, &params_of_call_, params);
    params.order = hopper::tile_order(problem, {kConfig}, kBlocks);
    params.tile_counter = counter.data();
    for (const std::size_t keys : {1U, 2U}) launch_.tensor_maps.at(keys).map.box[1] = kConfig.keys_of_box();
  }

  AttentionParams params_of_call_{};
  gpu::Launch launch_;
  backends::emulation::GlobalMemory memory_;
};

/// Values of some units, rounded to bf16 twice on their way.
constexpr double kFine = 0.03, kWrong = 0.3;

std::string fault_of_run(Fault fault) { return HopperCall<>().run(fault); }

TEST(EmulatedHopper, IsRightInAnyOrder) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    HopperCall<> call;
    EXPECT_EQ(call.run(Fault::none, seed), "");
    EXPECT_LT(call.error(), kFine);
  }
}

/// Two calls one after the other in one workspace, which held anything before.
TEST(EmulatedHopper, TheCounterOpensOverWhateverWasThere) {
  for (const std::uint32_t word : {0U, ~0U, 0x7FC00001U}) {
    HopperCall<> call;
    call.counter.fill(word);
    for (int run = 0; run < 2; ++run) {
      EXPECT_EQ(call.run(), "");
      EXPECT_LT(call.error(), kFine);
      EXPECT_EQ(call.counter[0], 0U) << "is left open";
      EXPECT_EQ(call.counter[1], 0U);
    }
  }
}

TEST(EmulatedHopper, AWrongByteCountIsCaught) {
  EXPECT_TRUE(
      contains(fault_of_run(Fault::too_few_bytes), "128 bytes more than it was told to expect land on barrier"));
  const std::string fault = fault_of_run(Fault::too_many_bytes);
  EXPECT_TRUE(contains(fault, "no lane can go on"));
  EXPECT_TRUE(contains(fault, "lacks 0 of 1 arrivals and 128 bytes"));
}

TEST(EmulatedHopper, AStageThatIsFilledBeforeItIsEmptyIsCaught) {
  EXPECT_TRUE(contains(fault_of_run(Fault::refilled_early), "wave 0, lane 0: "));
}

TEST(EmulatedHopper, AStageThatIsReadBeforeItIsFullIsCaught) {
  EXPECT_TRUE(contains(fault_of_run(Fault::no_wait_for_tiles), "of shared memory"));
}

TEST(EmulatedHopper, ALostArrivalNamesItsBarrier) {
  const std::string fault = fault_of_run(Fault::lost_arrival);
  EXPECT_TRUE(contains(fault, "no lane can go on"));
  EXPECT_TRUE(contains(fault, " of barrier "));
  EXPECT_TRUE(contains(fault, "which lacks 1 of "));
}

/// The stage is filled anew while another warp still reads it, unless all other arrivals have come before.
TEST(EmulatedHopper, AnArrivalTooManyIsCaught) { EXPECT_NE(fault_of_run(Fault::arrival_too_many), ""); }

TEST(EmulatedHopper, APhaseThatIsWaitedForTwiceIsCaught) {
  const std::string fault = fault_of_run(Fault::phase_waited_for_twice);
  EXPECT_TRUE(contains(fault, "wave 8, lane 0: waits for phase 0 of barrier "));
  EXPECT_TRUE(contains(fault, " twice"));
}

TEST(EmulatedHopper, BarriersThatTmaDoesNotKnowAreCaught) {
  EXPECT_TRUE(contains(fault_of_run(Fault::unpublished), "which publish_barriers() was not called for"));
}

TEST(EmulatedHopper, AMissingFenceBetweenProxiesIsCaught) {
  EXPECT_TRUE(
      contains(fault_of_run(Fault::no_proxy_fence), "with no fence_shared_writes() since it was written by wave"));
}

TEST(EmulatedHopper, RegistersOfTheMatrixUnitAreItsOwn) {
  EXPECT_TRUE(contains(fault_of_run(Fault::no_product_fence), "registers that no wgmma_fence() was for"));
  EXPECT_NE(fault_of_run(Fault::no_product_wait), "");
  EXPECT_NE(fault_of_run(Fault::short_product_wait), "");
}

TEST(EmulatedHopper, ALostTurnNamesItsBarrier) {
  EXPECT_TRUE(contains(fault_of_run(Fault::lost_turn), "at named barrier 1, which lacks 1 of 256 threads"));
}

TEST(EmulatedHopper, StoresThatAreLeftAloneAreCaught) { EXPECT_NE(fault_of_run(Fault::stores_left_alone), ""); }

TEST(EmulatedHopper, MoreRegistersThanThereAreNeverCome) {
  EXPECT_TRUE(contains(fault_of_run(Fault::registers_too_many), "for registers, of which"));
}

TEST(EmulatedHopper, ASwizzleThatDiffersIsCaughtByTheResult) {
  HopperCall<> call;
  EXPECT_EQ(call.run(Fault::other_swizzle), "");
  EXPECT_GT(call.error(), kWrong);
}

TEST(EmulatedHopper, DropoutIsRightInAnyOrder) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    HopperCall<kDropConfig> call;
    EXPECT_EQ(call.run(Fault::none, seed), "");
    EXPECT_LT(call.error(), kFine);
  }
}

TEST(EmulatedHopper, DrawsThatOverwriteOthersAreCaught) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    HopperCall<kDropConfig> call;
    EXPECT_TRUE(!call.run(Fault::drawn_early, seed).empty() || call.error() > kWrong);
  }
}

// ------------------------------------------------------------------ two blocks that share keys

std::string fault_of_pair(ClusterFault fault, std::uint64_t seed = 0) {
  return HopperCall<kPairConfig>().run(Fault::none, seed, fault);
}

/// Three tiles of queries: the last one's partner has no rows.
TEST(EmulatedHopper, APairOfBlocksIsRightInAnyOrder) {
  Sizes odd = kSizes;
  odd.seqlen_q = 300;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    HopperCall<kPairConfig> call(odd);
    EXPECT_EQ(call.run(Fault::none, seed), "");
    EXPECT_LT(call.error(), kFine);
  }
}

/// The other's barriers may stand or not.
TEST(EmulatedHopper, ABlockThatDoesNotWaitForTheOtherIsCaught) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    EXPECT_TRUE(contains(fault_of_pair(ClusterFault::begun_alone, seed), " of its cluster, where none was ") ||
                contains(fault_of_pair(ClusterFault::begun_alone, seed), "with no barrier since it was initialised"));
  }
}

/// Whichever of them ends first.
TEST(EmulatedHopper, ABlockThatLeavesTheOtherIsCaught) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const std::string fault = fault_of_pair(ClusterFault::ended_alone, seed);
    EXPECT_TRUE(contains(fault, "ends the block, none of whose lanes knows that block") ||
                contains(fault, "of its cluster, which has ended"));
  }
}

TEST(EmulatedHopper, AStageThatOneBlockAloneHandsBackIsCaught) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    EXPECT_NE(fault_of_pair(ClusterFault::refilled_by_own_readers, seed), "");
  }
}

TEST(EmulatedHopper, AStageThatTheOtherBlockIsNotToldOfIsCaught) {
  const std::string fault = fault_of_pair(ClusterFault::hand_back_lost);
  EXPECT_TRUE(contains(fault, "no lane can go on"));
  EXPECT_TRUE(contains(fault, "which lacks 1 of 16 arrivals and 0 bytes"));
}

TEST(EmulatedHopper, ACopyThatMissesTheOtherBlockIsCaught) {
  const std::string fault = fault_of_pair(ClusterFault::copy_misses_peer);
  EXPECT_TRUE(contains(fault, "no lane can go on"));
  EXPECT_TRUE(contains(fault, "which lacks 0 of 1 arrivals and 4096 bytes"));
}

TEST(EmulatedHopper, BytesOfTheOtherBlockThatAreNotExpectedAreCaught) {
  EXPECT_NE(HopperCall<kPairConfig>().run(Fault::half_expected), "");
}

/// Of a call in which the second warpgroup never has rows, nor one block of a pair any: Q that they do not look at
/// comes again and again. How many orders show that lanes do not meet before they hand its place back.
template <HopperForwardConfig kConfig>
int orders_in_which_lanes_come_too_late() {
  const Sizes sizes{.seqlen_q = 50, .seqlen_k = 40, .heads_q = 16, .dim = 64, .dim_v = 64, .dtype = DType::bf16};
  int caught = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    EXPECT_EQ(HopperCall<kConfig>(sizes).run(Fault::none, seed), "");
    const std::string fault = HopperCall<kConfig>(sizes).run(Fault::rowless_not_together, seed);
    caught += fault.find("no lane can go on") != std::string::npos;
  }
  return caught;
}
TEST(EmulatedHopper, ALaneThatComesTooLateForQIsCaught) {
  EXPECT_GT(orders_in_which_lanes_come_too_late<kAloneConfig>(), 0);
  EXPECT_GT(orders_in_which_lanes_come_too_late<kPairConfig>(), 0);
}

}  // namespace
}  // namespace tilewise::test
