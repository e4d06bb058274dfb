// The forward kernel on emulated machines, right and with faults planted in it: each one must be caught,
// by the checks or by the result.
#include <algorithm>
#include <cmath>
#include <span>

#include "../support/dense_call.hpp"
#include "core/call.hpp"
#include "device/portable/forward.h"
#include "device/portable/ops_cdna.h"
#include "device/portable/ops_rdna.h"
#include "device/portable/ops_sm80.h"
#include "emulated.hpp"

namespace tilewise::test {
namespace {

using namespace device;

constexpr KernelConfig kSm80Config{
    .head_dim = 32, .head_dim_v = 32, .waves = 2, .rows_per_wave = 16, .tile_cols = 32, .stages = 2, .ranged = true};
constexpr KernelConfig kCdnaConfig{.head_dim = 32,
                                   .head_dim_v = 32,
                                   .waves = 2,
                                   .rows_per_wave = 32,
                                   .tile_cols = 32,
                                   .rows_in_registers = true,
                                   .ranged = true};
constexpr KernelConfig kRdnaConfig{.head_dim = 32,
                                   .head_dim_v = 32,
                                   .waves = 2,
                                   .rows_per_wave = 16,
                                   .tile_cols = 32,
                                   .rows_in_registers = true,
                                   .ranged = true};

/// A causal call of lengths that no tile divides.
class ForwardCall {
 public:
  explicit ForwardCall(
      const Sizes& sizes = {.seqlen_q = 70, .seqlen_k = 83, .heads_q = 2, .dim = 32, .dim_v = 32, .dtype = DType::bf16})
      : expected(sizes), call(sizes) {
    expected.options.mask = call.options.mask = Mask::causal;
    expected.forward();
    const ForwardArguments arguments = call.forward_arguments();
    const core::Call described = core::call_of(arguments);
    params.call = core::make_params(described, core::describe(described));
  }

  /// What went wrong in the run, or empty.
  template <class Ops, KernelConfig C>
  std::string run(std::uint64_t seed = 0) {
    memory = backends::emulation::memory_of(params);
    return run_within<Ops, C>(seed);
  }
  /// The same where `memory` stays what it was.
  template <class Ops, KernelConfig C>
  std::string run_within(std::uint64_t seed = 0) {
    using Shared = ForwardShared<Ops, C>;
    constexpr int kRows = C.waves * C.rows_per_wave;
    params.grid.num_tiles = static_cast<std::int32_t>((params.call.seqlen_q + kRows - 1) / kRows);
    params.grid.num_splits = 1;
    params.grid.heads = static_cast<std::int32_t>(params.call.num_heads_q);
    const HostKernel* kernel = host_kernel<typename Ops::Machine, Shared>(
        [](const KernelParams& p, Shared& shared) { ForwardKernel<Ops, C>::run(p, shared); });
    return fault_of(kernel, C.waves * Ops::Machine::kLanes,
                    static_cast<int>(params.grid.num_tiles * params.call.num_heads_q), seed, params, memory);
  }

  /// Largest difference to the reference; NaN counts as infinite.
  [[nodiscard]] double error() const {
    double largest = 0.0;
    for (std::int64_t i = 0; i < call.out.size(); ++i) {
      const double difference = std::abs(call.out.at(i) - expected.out.at(i));
      largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
    }
    return largest;
  }

  DenseCall expected, call;
  KernelParams params{};
  backends::emulation::GlobalMemory memory;
};

/// Values of some units, rounded to bf16 twice on their way.
constexpr double kFine = 0.03, kWrong = 0.3;

template <template <class> class Ops, class Machine, KernelConfig C>
void check_correct() {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    ForwardCall forward;
    EXPECT_EQ((forward.run<Ops<Machine>, C>(seed)), "");
    EXPECT_LT(forward.error(), kFine);
  }
}

TEST(EmulatedForward, IsRightOnEveryMachineInAnyOrder) {
  check_correct<Sm80Ops, HostSm80Machine, kSm80Config>();
  check_correct<CdnaOps, HostCdnaMachine, kCdnaConfig>();
  check_correct<RdnaOps, HostRdnaMachine, kRdnaConfig>();
}

template <class Machine>
struct WithoutBarrier : Machine {
  static void barrier() {}
};

TEST(PlantedFault, AMissingBarrierIsCaught) {
  EXPECT_TRUE(contains((ForwardCall().run<Sm80Ops<WithoutBarrier<HostSm80Machine>>, kSm80Config>()), "shared memory"));
  EXPECT_TRUE(contains((ForwardCall().run<CdnaOps<WithoutBarrier<HostCdnaMachine>>, kCdnaConfig>()), "shared memory"));
  EXPECT_TRUE(contains((ForwardCall().run<RdnaOps<WithoutBarrier<HostRdnaMachine>>, kRdnaConfig>()), "shared memory"));
}

/// Leaves out the kth barrier of each lane: one of those between tiles.
template <class Machine>
struct WithoutOneBarrier : Machine {
  static inline thread_local int count[1024];
  static constexpr int kLeftOut = 3;
  static void barrier() {
    if (count[Machine::thread()]++ != kLeftOut) Machine::barrier();
  }
};

TEST(PlantedFault, OneBarrierLessThanNeededIsCaught) {
  set_num_threads(1);  // one thread runs all blocks: the counters are its own
  const auto fault = []<class Ops, KernelConfig C>() {
    std::ranges::fill(Ops::Machine::count, 0);
    return ForwardCall({.seqlen_q = 16, .seqlen_k = 400, .dim = 32, .dim_v = 32, .dtype = DType::bf16})
        .template run<Ops, C>();
  };
  EXPECT_TRUE(
      contains((fault.operator()<Sm80Ops<WithoutOneBarrier<HostSm80Machine>>, kSm80Config>()), "shared memory"));
  EXPECT_TRUE(
      contains((fault.operator()<CdnaOps<WithoutOneBarrier<HostCdnaMachine>>, kCdnaConfig>()), "shared memory"));
  EXPECT_TRUE(
      contains((fault.operator()<RdnaOps<WithoutOneBarrier<HostRdnaMachine>>, kRdnaConfig>()), "shared memory"));
  set_num_threads(0);
}

struct WithoutWait : HostSm80Machine {
  template <int kPending>
  static void wait_copies() {}
};
/// Leaves the values' copies under way: the last group but one.
struct WithShortWait : HostSm80Machine {
  template <int kPending>
  static void wait_copies() {
    HostSm80Machine::wait_copies<kPending + 2>();
  }
};

TEST(PlantedFault, AMissingWaitForACopyIsCaught) {
  const std::string late = "an asynchronous copy is under way that was not waited for";
  EXPECT_TRUE(contains((ForwardCall().run<Sm80Ops<WithoutWait>, kSm80Config>()), late));
  EXPECT_TRUE(contains((ForwardCall().run<Sm80Ops<WithShortWait>, kSm80Config>()), late));
}

struct WithTransposedValues : HostSm80Machine {
  static void load_matrices_transposed(uint32_t (&to)[4], const void* row) { load_matrices(to, row); }
};
struct WithTransposedLeft : HostSm80Machine {
  template <int kElement>
  static void mma(Sm80Accumulator& d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const uint32_t swapped[4] = {a[0], a[2], a[1], a[3]};
    HostSm80Machine::mma<kElement>(d, swapped, b0, b1);
  }
};
struct WithSwappedOperands : HostCdnaMachine {
  template <int kElement>
  static void mma_32x32x16(CdnaAccumulator& d, CdnaOperand a, CdnaOperand b) {
    HostCdnaMachine::mma_32x32x16<kElement>(d, b, a);
  }
};
struct WithSwappedRdnaOperands : HostRdnaMachine {
  template <int kElement>
  static void mma_16x16x16(RdnaAccumulator& d, RdnaOperand a, RdnaOperand b) {
    HostRdnaMachine::mma_16x16x16<kElement>(d, b, a);
  }
};

TEST(PlantedFault, ATransposedFragmentIsCaughtByItsResult) {
  const auto error = []<class Ops, KernelConfig C>() {
    ForwardCall forward;
    EXPECT_EQ((forward.run<Ops, C>()), "");
    return forward.error();
  };
  EXPECT_GT((error.operator()<Sm80Ops<WithTransposedValues>, kSm80Config>()), kWrong);
  EXPECT_GT((error.operator()<Sm80Ops<WithTransposedLeft>, kSm80Config>()), kWrong);
  EXPECT_GT((error.operator()<CdnaOps<WithSwappedOperands>, kCdnaConfig>()), kWrong);
  EXPECT_GT((error.operator()<RdnaOps<WithSwappedRdnaOperands>, kRdnaConfig>()), kWrong);
}

/// WMMA reads each operand from both halves of a wave: an exchange forgotten leaves them apart.
struct WithoutSwap : HostRdnaMachine {
  static uint32_t swap_halves(uint32_t word) { return word; }
};

TEST(PlantedFault, OperandsThatDoNotRepeatAreCaught) {
  EXPECT_TRUE(contains((ForwardCall().run<RdnaOps<WithoutSwap>, kRdnaConfig>()), "differs between lane"));
}

/// The kernel is told one key, or one query, more than the tensors have.
template <class Ops, KernelConfig C>
void check_off_by_one() {
  const auto fault = [](std::int64_t AttentionParams::* length) {
    ForwardCall forward;
    forward.memory = backends::emulation::memory_of(forward.params);
    forward.params.call.*length += 1;
    return forward.run_within<Ops, C>();
  };
  EXPECT_TRUE(contains(fault(&AttentionParams::seqlen_k), "which ends at byte"));
  EXPECT_TRUE(contains(fault(&AttentionParams::seqlen_q), "which ends at byte"));
}

TEST(PlantedFault, AnOffByOneInAPartialTileIsCaught) {
  check_off_by_one<Sm80Ops<HostSm80Machine>, kSm80Config>();
  check_off_by_one<CdnaOps<HostCdnaMachine>, kCdnaConfig>();
  check_off_by_one<RdnaOps<HostRdnaMachine>, kRdnaConfig>();
}

TEST(PlantedFault, AnOffByOneInTheMaskIsCaughtByItsResult) {
  ForwardCall forward;
  forward.params.call.window_right += 1;
  EXPECT_EQ((forward.run<Sm80Ops<HostSm80Machine>, kSm80Config>()), "");
  EXPECT_GT(forward.error(), kWrong);
}

/// Forgets the last chunk of each row of 32 elements.
struct WithShortCopies : HostSm80Machine {
  static void copy_async(void* to, const void* from, bool valid) {
    if (thread() % 4 != 3) HostSm80Machine::copy_async(to, from, valid);
  }
};

TEST(PlantedFault, AReadOfUnwrittenSharedMemoryIsCaught) {
  EXPECT_TRUE(contains((ForwardCall().run<Sm80Ops<WithShortCopies>, kSm80Config>()),
                       "of shared memory, which nobody wrote since the block began"));
}

}  // namespace
}  // namespace tilewise::test
