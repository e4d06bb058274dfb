// The forward kernel on emulated machines, right and with faults planted in it: each one must be caught,
// by the checks or by the result.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>

#include "../support/dense_call.hpp"
#include "backends/portable/attention/bind.hpp"
#include "backends/portable/attention/kernels.hpp"
#include "described_call.hpp"
#include "device/attention/forward.h"
#include "device/tile/ops_cdna.h"
#include "device/tile/ops_rdna.h"
#include "device/tile/ops_sm80.h"
#include "emulated.hpp"

namespace tilewise::test {
namespace {

using namespace device;

/// The one fault of the run under way. Chosen at run time, so that a kernel is compiled once for all of them.
enum class Fault {
  none,
  no_barrier,
  one_barrier_less,
  no_wait,
  short_wait,
  transposed_values,
  transposed_left,
  swapped_operands,
  no_exchange,
  short_copies,
  none_is_read,
  duplicate_is_left_out,
};
Fault g_fault = Fault::none;
std::array<int, 1024> g_barriers;  // that each thread came to
constexpr std::int64_t kTopK = 36;
const std::int32_t* g_indices = nullptr;  // rows of kTopK, the last of which repeats the first

template <class Machine>
struct Faulty : Machine {
  static void barrier() {
    constexpr int kLeftOut = 3;  // one between tiles
    if (g_fault == Fault::no_barrier) return;
    if (g_fault == Fault::one_barrier_less && g_barriers[static_cast<std::size_t>(Machine::thread())]++ == kLeftOut)
      return;
    Machine::barrier();
  }
  /// No kernel of the tests reads other integers of 32 bits than a call's indices.
  template <class T>
  static T load_global(const T* from) {
    const T value = Machine::load_global(from);
    if constexpr (std::is_same_v<T, std::int32_t>) {
      if (g_fault == Fault::none_is_read && value == -1) return 0;
      if (g_fault == Fault::duplicate_is_left_out && (from - g_indices) % kTopK == kTopK - 1) return -1;
    }
    return value;
  }
};

struct FaultySm80 : Faulty<HostSm80Machine> {
  template <int kPending>
  static void wait_copies() {
    if (g_fault == Fault::no_wait) return;
    // The values' copies stay under way: the last group but one, after an empty one.
    if (g_fault == Fault::short_wait) return HostSm80Machine::wait_copies<kPending + 2>();
    HostSm80Machine::wait_copies<kPending>();
  }
  static void copy_async(void* to, const void* from, bool valid) {
    if (g_fault == Fault::short_copies && thread() % 4 == 3) return;  // the last chunk of each row
    HostSm80Machine::copy_async(to, from, valid);
  }
  static void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
    if (g_fault == Fault::transposed_values) return load_matrices(to, row);
    HostSm80Machine::load_matrices_transposed(to, row);
  }
  template <int kElement>
  static void mma(Sm80Accumulator& d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const uint32_t transposed[4] = {a[0], a[2], a[1], a[3]};
    HostSm80Machine::mma<kElement>(d, g_fault == Fault::transposed_left ? transposed : a, b0, b1);
  }
};

struct FaultyCdna : Faulty<HostCdnaMachine> {
  template <int kElement>
  static void mma_32x32x16(CdnaAccumulator& d, CdnaOperand a, CdnaOperand b) {
    if (g_fault == Fault::swapped_operands) return HostCdnaMachine::mma_32x32x16<kElement>(d, b, a);
    HostCdnaMachine::mma_32x32x16<kElement>(d, a, b);
  }
};

struct FaultyRdna : Faulty<HostRdnaMachine> {
  template <int kElement>
  static void mma_16x16x16(RdnaAccumulator& d, const RdnaOperand& a, const RdnaOperand& b) {
    if (g_fault == Fault::swapped_operands) return HostRdnaMachine::mma_16x16x16<kElement>(d, b, a);
    HostRdnaMachine::mma_16x16x16<kElement>(d, a, b);
  }
  static uint32_t swap_halves(uint32_t word) {
    return g_fault == Fault::no_exchange ? word : HostRdnaMachine::swap_halves(word);
  }
};

/// Two waves, and tiles of 32 keys.
constexpr ForwardConfig forward_config(std::int32_t rows_per_wave, std::int32_t stages, Flag rows_in_registers) {
  ForwardConfig c;
  c.head_dim = c.head_dim_v = 32;
  c.exact_dims = 1;
  c.waves = 2;
  c.rows_per_wave = rows_per_wave;
  c.block_n = 32;
  c.stages = stages;
  c.rows_in_registers = rows_in_registers;
  c.ranged = 1;
  return c;
}
constexpr ForwardConfig selecting(ForwardConfig c) {
  c.selects = c.pack_gqa = 1;
  return c;
}

/// A causal call of lengths that no tile divides.
class ForwardCall {
 public:
  explicit ForwardCall(
      const Sizes& sizes = {.seqlen_q = 70, .seqlen_k = 83, .heads_q = 2, .dim = 32, .dim_v = 32, .dtype = DType::bf16})
      : ForwardCall(sizes, Tensor()) {}
  /// The same of selected keys.
  ForwardCall(const Sizes& sizes, const Tensor& key_indices) : expected(sizes), call(sizes) {
    expected.options.mask = call.options.mask = Mask::causal;
    expected.key_indices = call.key_indices = key_indices;
    expected.forward();
    backends::portable::bind(described_call(call.forward_arguments()).params, params);
  }

  /// What went wrong in a run on the machine of `Ops` with that fault, or empty.
  template <class Ops, ForwardConfig C>
  std::string run(Fault fault = Fault::none, std::uint64_t seed = 0) {
    memory = memory_of_call();
    return run_within<Ops, C>(fault, seed);
  }
  /// The same where `memory` stays what it was.
  template <class Ops, ForwardConfig C>
  std::string run_within(Fault fault = Fault::none, std::uint64_t seed = 0) {
    // A group's heads of one query fit a tile.
    const std::int64_t tiles =
        C.selects ? params.shape.seqlen_q : (params.shape.seqlen_q + C.block_m() - 1) / C.block_m();
    params.grid = tile_grid(tiles, 1, C.selects ? params.shape.num_heads_k : params.shape.num_heads_q,
                            params.shape.num_heads_q / params.shape.num_heads_k);
    g_fault = fault;
    g_barriers.fill(0);
    return fault_of(host_kernel<Forward<Ops, C>, typename Ops::Machine>(), C.waves * Ops::Machine::kLanes,
                    params.grid.num_tiles * params.grid.num_heads, seed, memory, &params);
  }

  [[nodiscard]] backends::emulation::GlobalMemory memory_of_call() const {
    return backends::emulation::memory_of(gpu::body_of<backends::portable::Forward>(), &params);
  }

  /// Largest difference to the reference.
  [[nodiscard]] double error() const { return largest_difference(call.out, expected.out); }

  DenseCall expected, call;
  ForwardParams params{};
  backends::emulation::GlobalMemory memory;
};

/// Where each query selects its first key twice, keys that it sees and keys that it does not, and none at times.
ForwardCall selected_call() {
  constexpr std::int64_t kKeys = 83;
  const Sizes sizes{
      .seqlen_q = 7, .seqlen_k = kKeys, .heads_q = 6, .heads_k = 2, .dim = 32, .dim_v = 32, .dtype = DType::bf16};
  Tensor indices(DType::i32, {1, sizes.seqlen_q, sizes.heads_k, kTopK});
  indices.fill_with([&](std::span<const std::int64_t> at) {
    const std::int64_t n = at[3] % (kTopK - 1);
    return n % 8 == 7 ? -1.0 : static_cast<double>((11 * n + 5 * at[1] + at[2] + 3) % (kKeys + 4));
  });
  return {sizes, indices};
}

/// Values of some units, rounded to bf16 twice on their way.
constexpr double kFine = 0.03, kWrong = 0.3;

struct OnSm80 {
  using Ops = Sm80Ops<FaultySm80>;
  static constexpr ForwardConfig kConfig = forward_config(16, 2, 0);
};
struct OnCdna {
  using Ops = CdnaOps<FaultyCdna>;
  static constexpr ForwardConfig kConfig = forward_config(32, 1, 1);
};
struct OnRdna {
  using Ops = RdnaOps<FaultyRdna>;
  static constexpr ForwardConfig kConfig = forward_config(16, 1, 1);
};

template <class On>
class EmulatedForward : public testing::Test {
 protected:
  static std::string fault_of_run(ForwardCall&& call, Fault fault) {
    return call.run<typename On::Ops, On::kConfig>(fault);
  }
  static double error_of_selected_run(Fault fault, std::uint64_t seed = 0) {
    ForwardCall call = selected_call();
    g_indices = call.params.key_indices.data;
    EXPECT_EQ((call.run<typename On::Ops, selecting(On::kConfig)>(fault, seed)), "");
    return call.error();
  }
  /// Nothing is wrong but the result.
  static double error_of_run(Fault fault) {
    ForwardCall call;
    EXPECT_EQ((call.run<typename On::Ops, On::kConfig>(fault)), "");
    return call.error();
  }
  /// The kernel is told one row more than the tensors have.
  static std::string fault_of_one_more(std::int64_t AttentionShape::* length) {
    ForwardCall call;
    call.memory = call.memory_of_call();
    call.params.shape.*length += 1;
    return call.run_within<typename On::Ops, On::kConfig>();
  }
};
using Machines = testing::Types<OnSm80, OnCdna, OnRdna>;
TYPED_TEST_SUITE(EmulatedForward, Machines);

TYPED_TEST(EmulatedForward, IsRightInAnyOrder) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    ForwardCall call;
    EXPECT_EQ((call.run<typename TypeParam::Ops, TypeParam::kConfig>(Fault::none, seed)), "");
    EXPECT_LT(call.error(), kFine);
  }
}

TYPED_TEST(EmulatedForward, AMissingBarrierIsCaught) {
  EXPECT_TRUE(contains(this->fault_of_run(ForwardCall(), Fault::no_barrier), "of shared memory"));
}

TYPED_TEST(EmulatedForward, OneBarrierLessThanNeededIsCaught) {
  // One block: each thread counts its own barriers.
  const Sizes sizes{.seqlen_q = 16, .seqlen_k = 400, .dim = 32, .dim_v = 32, .dtype = DType::bf16};
  EXPECT_TRUE(contains(this->fault_of_run(ForwardCall(sizes), Fault::one_barrier_less), "of shared memory"));
}

TYPED_TEST(EmulatedForward, AnOffByOneInAPartialTileIsCaught) {
  EXPECT_TRUE(contains(this->fault_of_one_more(&AttentionShape::seqlen_k), "which ends at byte"));
  EXPECT_TRUE(contains(this->fault_of_one_more(&AttentionShape::seqlen_q), "which ends at byte"));
}

TYPED_TEST(EmulatedForward, AnOffByOneInTheMaskIsCaughtByTheResult) {
  ForwardCall call;
  call.params.score.window_right += 1;
  EXPECT_EQ((call.run<typename TypeParam::Ops, TypeParam::kConfig>()), "");
  EXPECT_GT(call.error(), kWrong);
}

TYPED_TEST(EmulatedForward, SelectsKeysInAnyOrder) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) EXPECT_LT(this->error_of_selected_run(Fault::none, seed), kFine);
}

TYPED_TEST(EmulatedForward, ADuplicateLeftOutIsCaughtByTheResult) {
  EXPECT_GT(this->error_of_selected_run(Fault::duplicate_is_left_out), kWrong);
}

TYPED_TEST(EmulatedForward, AnIndexOfNoneThatIsReadIsCaughtByTheResult) {
  EXPECT_GT(this->error_of_selected_run(Fault::none_is_read), kWrong);
}

/// Indices past the keys are there: where they count as keys the kernel reads past them.
TYPED_TEST(EmulatedForward, AnIndexPastTheKeysThatIsReadIsCaught) {
  ForwardCall call = selected_call();
  call.memory = call.memory_of_call();
  call.params.shape.seqlen_k += 4;
  EXPECT_TRUE(
      contains((call.run_within<typename TypeParam::Ops, selecting(TypeParam::kConfig)>()), "which ends at byte"));
}

using EmulatedOnSm80 = EmulatedForward<OnSm80>;
using EmulatedOnCdna = EmulatedForward<OnCdna>;
using EmulatedOnRdna = EmulatedForward<OnRdna>;

TEST_F(EmulatedOnSm80, AMissingWaitForACopyIsCaught) {
  const std::string late = "an asynchronous copy is under way that was not waited for";
  EXPECT_TRUE(contains(fault_of_run(ForwardCall(), Fault::no_wait), late));
  EXPECT_TRUE(contains(fault_of_run(ForwardCall(), Fault::short_wait), late));
}

TEST_F(EmulatedOnSm80, ATransposedFragmentIsCaughtByTheResult) {
  EXPECT_GT(error_of_run(Fault::transposed_values), kWrong);
  EXPECT_GT(error_of_run(Fault::transposed_left), kWrong);
}
TEST_F(EmulatedOnCdna, ATransposedFragmentIsCaughtByTheResult) {
  EXPECT_GT(error_of_run(Fault::swapped_operands), kWrong);
}
TEST_F(EmulatedOnRdna, ATransposedFragmentIsCaughtByTheResult) {
  EXPECT_GT(error_of_run(Fault::swapped_operands), kWrong);
}

TEST_F(EmulatedOnSm80, AReadOfUnwrittenSharedMemoryIsCaught) {
  EXPECT_TRUE(contains(fault_of_run(ForwardCall(), Fault::short_copies),
                       "of shared memory, which nobody wrote since the block began"));
}

// WMMA reads each operand from both halves of a wave: without the exchange they differ.
TEST_F(EmulatedOnRdna, OperandsThatDoNotRepeatAreCaught) {
  EXPECT_TRUE(contains(fault_of_run(ForwardCall(), Fault::no_exchange), "differs between lane"));
}

}  // namespace
}  // namespace tilewise::test
