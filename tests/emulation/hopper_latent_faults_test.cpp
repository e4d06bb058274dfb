// Hopper's kernel of MLA's decoding on its emulated machine, right and with faults planted in it: each one must be
// caught, by the checks or by the result.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "../support/kv_cache_step.hpp"
#include "backends/cuda/hopper/latent.hpp"
#include "cluster_faults.hpp"
#include "device/common/float16.h"
#include "device/hopper/latent.h"
#include "device/sm90/machine_host.h"
#include "emulated.hpp"
#include "emulated_maps.hpp"
#include "operations/kv_cache/call.hpp"

namespace tilewise::test {
namespace {

using namespace device;
namespace hopper = backends::hopper;

/// The one fault of the run under way.
enum class Fault {
  none,
  weights_unfenced,
  weights_too_early,
  weights_untold,
  refilled_early,
  chunk_forgotten,
  end_not_cleared,
  cleared_early,
  no_product_wait,
  peers_copy_not_expected,  // of two blocks that share keys
};
Fault g_fault = Fault::none;

using FaultyPairSm90 = FaultyClusterSm90<HopperLatentConfig::kThreads, 4>;

struct FaultyLatentSm90 : FaultyPairSm90 {
  static bool loads() { return thread() < kWarpgroupThreads; }

  static void fence_shared_writes() {
    if (g_fault != Fault::weights_unfenced || loads()) HostSm90Machine::fence_shared_writes();
  }
  static void named_barrier_sync(int number, int threads) {
    if (g_fault == Fault::weights_too_early && number != kConsumersMeet) return;
    HostSm90Machine::named_barrier_sync(number, threads);
  }
  static void arrive(uint64_t* barrier) {
    if (g_fault == Fault::weights_untold && thread() == kWarpgroupThreads) return;
    HostSm90Machine::arrive(barrier);
  }
  static void wait(uint64_t* barrier, uint32_t parity) {
    if (g_fault == Fault::refilled_early && thread() < 32 && parity == 0) return;
    if (g_fault == Fault::cleared_early && loads() && is_of_weights(barrier)) return;
    HostSm90Machine::wait(barrier, parity);
  }
  static bool is_of_weights(uint64_t* barrier);
  static void arrive_and_expect(uint64_t* barrier, int32_t bytes) {
    const int32_t chunk = 64 * kChunkRowBytes;
    const bool peers = g_fault == Fault::peers_copy_not_expected && rank_in_cluster() == 1 && bytes == chunk;
    HostSm90Machine::arrive_and_expect(barrier, g_fault == Fault::chunk_forgotten || peers ? bytes - chunk : bytes);
  }
  template <class T>
  static void store_shared(void* to, T value) {
    if (g_fault == Fault::end_not_cleared && loads() && sizeof(T) == sizeof(Chunk)) return;
    HostSm90Machine::store_shared(to, value);
  }
  template <int kPending>
  static void wgmma_wait() {
    if (g_fault != Fault::no_product_wait) HostSm90Machine::wgmma_wait<kPending>();
  }
};

constexpr std::int64_t kDim = 192, kDimV = 128, kCapacity = 320, kUsed = 300;

/// Three queries of 16 heads are a block, and one of 128 two, which share keys where these come by small pages.
constexpr HopperLatentConfig config_of(bool pair) {
  HopperLatentConfig c;
  c.head_dim = kDim;
  c.head_dim_v = kDimV;
  c.waves = HopperLatentConfig::kThreads / 32;
  c.exact_dims = c.lengths = c.ranged = 1;
  c.page_size = pair ? 16 : 0;
  c.clustered = pair;
  return c;
}

/// Of the config without pages.
bool FaultyLatentSm90::is_of_weights(uint64_t* barrier) {
  using Shared = HopperLatentShared<FaultyLatentSm90, config_of(false)>;
  const std::size_t at = shared_address(barrier) - offsetof(Shared, weights);
  return at < sizeof(Shared::weights);
}

/// A causal call over five tiles of keys, the last of which ends in NaN.
template <bool kPair>
class LatentCall {
  static constexpr std::int64_t kQueries = kPair ? 1 : 3, kHeads = kPair ? 128 : 16;
  static constexpr HopperLatentConfig kConfig = config_of(kPair);

 public:
  LatentCall() {
    arguments_.q = step_.tensor({1, kQueries, kHeads, kDim}, DType::bf16);
    arguments_.k_cache = step_.tensor({1, kCapacity, 1, kDim}, DType::bf16);
    arguments_.out = step_.tensor({1, kQueries, kHeads, kDimV}, DType::bf16);
    if constexpr (kPair) {
      arguments_.k_cache = step_.tensor({kCapacity / kConfig.page_size, kConfig.page_size, 1, kDim}, DType::bf16);
      std::vector<std::int32_t> pages(kCapacity / kConfig.page_size);
      std::iota(pages.begin(), pages.end(), 0);
      arguments_.options.block_table = step_.lengths(pages);
      arguments_.options.block_table.rank = 2;
      arguments_.options.block_table.shape = {1, static_cast<std::int64_t>(pages.size())};
      arguments_.options.block_table.strides = {static_cast<std::int64_t>(pages.size()), 1};
    }
    arguments_.options.cache_seqlens = step_.lengths({kUsed});
    arguments_.options.head_dim_v = kDimV;
    arguments_.options.mask = Mask::causal;
    arguments_.options.batch_invariant = true;
    draw(arguments_.q, 1.0f, kQueries * kHeads * kDim);
    draw(arguments_.k_cache, 1.0f, kUsed * kDim);
    auto* const cache = static_cast<std::uint16_t*>(arguments_.k_cache.data);
    std::fill(cache + kUsed * kDim, cache + kCapacity * kDim, std::uint16_t{0x7FC0});
    KvCacheArguments reference = arguments_;
    reference.out = step_.tensor({1, kQueries, kHeads, kDimV}, DType::bf16);
    kv_cache_attention(reference, {"reference"});
    expected_ = values(reference.out);
    const operations::kv_cache::Call described(arguments_);
    const KvCacheProblem problem = operations::kv_cache::describe(described);
    call_ = operations::kv_cache::make_params(described, problem);
    core::DeviceDescription device;
    device.shared_bytes = 227 << 10;
    device.multiprocessors = 4;
    launch_ = *hopper::lower_latent(problem, device).lowering.launches().at(0);
    EXPECT_EQ(launch_.cluster.x, kPair ? 2U : 1U);
    bind_params(launch_, &call_, params_);
  }

  /// What went wrong in a run with that fault, or empty.
  std::string run(Fault fault = Fault::none, std::uint64_t seed = 0, ClusterFault of_cluster = ClusterFault::none) {
    using Kernel = HopperLatent<Sm90Ops<FaultyLatentSm90>, kConfig>;
    g_fault = fault;
    FaultyPairSm90::begin_run(of_cluster);
    write_maps(launch_, &call_, params_);
    memory_ = backends::emulation::memory_of(gpu::body_of<hopper::Latent>(), &params_);
    return fault_of(host_kernel<Kernel, FaultyLatentSm90>(), HopperLatentConfig::kThreads,
                    static_cast<int>(launch_.grid.x), seed, memory_, &params_, static_cast<int>(launch_.cluster.x));
  }

  /// Largest difference to the reference.
  [[nodiscard]] double error() const {
    const std::vector<float> found = values(arguments_.out);
    double largest = 0.0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double difference = std::abs(static_cast<double>(found[i]) - static_cast<double>(expected_[i]));
      largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
    }
    return largest;
  }

 private:
  /// Numbers of both signs, the same in each run.
  static void draw(const TensorView& view, float scale, std::int64_t count) {
    auto* const to = static_cast<std::uint16_t*>(view.data);
    std::uint32_t state = 12345;
    for (std::int64_t i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      to[i] = float_to_bf16(scale * (static_cast<float>(state >> 8) / 8388608.0f - 1.0f));
    }
  }
  static std::vector<float> values(const TensorView& view) {
    const auto* const from = static_cast<const std::uint16_t*>(view.data);
    std::vector<float> all(static_cast<std::size_t>(view.numel()));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = bf16_to_float(from[i]);
    return all;
  }

  SmallStep step_;
  KvCacheArguments arguments_;
  std::vector<float> expected_;
  operations::kv_cache::KvCacheParams call_{};
  gpu::Launch launch_;
  HopperLatentParams params_{};
  backends::emulation::GlobalMemory memory_;
};

constexpr double kFine = 0.01;

std::string fault_of_run(Fault fault) { return LatentCall<false>().run(fault); }
std::string fault_of_pair(ClusterFault fault, std::uint64_t seed = 0) {
  return LatentCall<true>().run(Fault::none, seed, fault);
}

template <bool kPair>
void expect_right_in_any_order() {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    LatentCall<kPair> call;
    EXPECT_EQ(call.run(Fault::none, seed), "");
    EXPECT_LT(call.error(), kFine);
  }
}
TEST(EmulatedHopperLatent, IsRightInAnyOrder) { expect_right_in_any_order<false>(); }
TEST(EmulatedHopperLatent, APairOfBlocksIsRightInAnyOrder) { expect_right_in_any_order<true>(); }

TEST(EmulatedHopperLatent, WeightsWithoutAFenceAreCaught) {
  EXPECT_TRUE(contains(fault_of_run(Fault::weights_unfenced), "with no fence_shared_writes() since it was written by"));
}

/// Another warp may still multiply the keys whose place they take.
TEST(EmulatedHopperLatent, WeightsOverKeysInUseAreCaught) {
  EXPECT_TRUE(contains(fault_of_run(Fault::weights_too_early), "with no barrier since it was read by a product"));
}

TEST(EmulatedHopperLatent, WeightsThatNobodyIsToldOfAreCaught) {
  const std::string fault = fault_of_run(Fault::weights_untold);
  EXPECT_TRUE(contains(fault, "no lane can go on"));
  EXPECT_TRUE(contains(fault, "which lacks 1 of "));
}

TEST(EmulatedHopperLatent, AStageThatIsFilledBeforeItIsEmptyIsCaught) {
  EXPECT_NE(fault_of_run(Fault::refilled_early), "");
}

TEST(EmulatedHopperLatent, AChunkThatIsNotWaitedForIsCaught) {
  EXPECT_TRUE(contains(fault_of_run(Fault::chunk_forgotten), "than it was told to expect land on barrier"));
}

/// NaN lies there.
TEST(EmulatedHopperLatent, ValuesPastTheEndAreCaughtByTheResult) {
  LatentCall<false> call;
  EXPECT_EQ(call.run(Fault::end_not_cleared), "");
  EXPECT_EQ(call.error(), INFINITY);
}

/// The last tile's end, while the tile before in its stage lands: where its last chunk has overtaken the others.
TEST(EmulatedHopperLatent, ValuesThatAreClearedBeforeTheyLandAreCaught) {
  constexpr std::uint64_t kMostSeeds = 60;
  std::string fault;
  for (std::uint64_t seed = 0; fault.empty() && seed < kMostSeeds; ++seed) {
    fault = LatentCall<false>().run(Fault::cleared_early, seed);
  }
  EXPECT_TRUE(contains(fault, "of shared memory, with no barrier since it was written by a copy") ||
              contains(fault, "of shared memory, where a copy is under way"))
      << fault;
}

TEST(EmulatedHopperLatent, RegistersOfTheMatrixUnitAreItsOwn) { EXPECT_NE(fault_of_run(Fault::no_product_wait), ""); }

// ------------------------------------------------------------------ two blocks that share keys

/// The other's barriers may stand or not.
TEST(EmulatedHopperLatent, ABlockThatDoesNotWaitForTheOtherIsCaught) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    EXPECT_TRUE(
        contains(fault_of_pair(ClusterFault::begun_alone, seed), " of its cluster, where none was initialised") ||
        contains(fault_of_pair(ClusterFault::begun_alone, seed), "with no barrier since it was initialised"));
  }
}

/// Whichever of them ends first.
TEST(EmulatedHopperLatent, ABlockThatLeavesTheOtherIsCaught) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const std::string fault = fault_of_pair(ClusterFault::ended_alone, seed);
    EXPECT_TRUE(contains(fault, "ends the block, none of whose lanes knows that block") ||
                contains(fault, "of its cluster, which has ended"));
  }
}

TEST(EmulatedHopperLatent, AStageThatOneBlockAloneHandsBackIsCaught) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    EXPECT_NE(fault_of_pair(ClusterFault::refilled_by_own_readers, seed), "");
  }
}

TEST(EmulatedHopperLatent, AStageThatTheOtherBlockIsNotToldOfIsCaught) {
  const std::string fault = fault_of_pair(ClusterFault::hand_back_lost);
  EXPECT_TRUE(contains(fault, "no lane can go on"));
  EXPECT_TRUE(contains(fault, "which lacks 1 of 8 arrivals and 0 bytes"));
}

TEST(EmulatedHopperLatent, ACopyThatMissesTheOtherBlockIsCaught) {
  const std::string fault = fault_of_pair(ClusterFault::copy_misses_peer);
  EXPECT_TRUE(contains(fault, "no lane can go on"));
  EXPECT_TRUE(contains(fault, "which lacks 0 of 1 arrivals and 8192 bytes"));
}

TEST(EmulatedHopperLatent, BytesOfTheOtherBlockThatAreNotExpectedAreCaught) {
  EXPECT_TRUE(
      contains(LatentCall<true>().run(Fault::peers_copy_not_expected), "than it was told to expect land on barrier"));
}

}  // namespace
}  // namespace tilewise::test
