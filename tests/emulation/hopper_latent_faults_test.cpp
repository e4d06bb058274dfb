// Hopper's kernel of MLA's decoding on its emulated machine, right and with faults planted in it: each one must be
// caught, by the checks or by the result.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../support/kv_cache_step.hpp"
#include "backends/cuda/hopper/latent.hpp"
#include "device/common/float16.h"
#include "device/hopper/latent.h"
#include "device/hopper/machine_host.h"
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
  no_product_wait,
};
Fault g_fault = Fault::none;

struct FaultyLatentSm90 : HostSm90Machine {
  static bool brings() { return thread() < kWarpgroupThreads; }

  static void fence_shared_writes() {
    if (g_fault != Fault::weights_unfenced || brings()) HostSm90Machine::fence_shared_writes();
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
    HostSm90Machine::wait(barrier, parity);
  }
  static void arrive_and_expect(uint64_t* barrier, int32_t bytes) {
    const int32_t chunk = 64 * kChunkRowBytes;
    HostSm90Machine::arrive_and_expect(barrier, g_fault == Fault::chunk_forgotten ? bytes - chunk : bytes);
  }
  template <class T>
  static void store_shared(void* to, T value) {
    if (g_fault == Fault::end_not_cleared && brings() && sizeof(T) == sizeof(Chunk)) return;
    HostSm90Machine::store_shared(to, value);
  }
  template <int kPending>
  static void wgmma_wait() {
    if (g_fault != Fault::no_product_wait) HostSm90Machine::wgmma_wait<kPending>();
  }
};

constexpr std::int64_t kQueries = 3, kHeads = 16, kDim = 192, kDimV = 128, kCapacity = 320, kUsed = 300;

constexpr HopperLatentConfig kConfig = [] {
  HopperLatentConfig c;
  c.head_dim = kDim;
  c.head_dim_v = kDimV;
  c.waves = HopperLatentConfig::kThreads / 32;
  c.exact_dims = c.lengths = c.ranged = 1;
  return c;
}();

/// A causal call over five tiles of keys, the last of which ends in NaN.
class LatentCall {
 public:
  LatentCall() {
    arguments_.q = step_.tensor({1, kQueries, kHeads, kDim}, DType::bf16);
    arguments_.k_cache = step_.tensor({1, kCapacity, 1, kDim}, DType::bf16);
    arguments_.out = step_.tensor({1, kQueries, kHeads, kDimV}, DType::bf16);
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
    const operations::kv_cache::Call described = operations::kv_cache::call_of(arguments_);
    const KvCacheProblem problem = operations::kv_cache::describe(described);
    call_ = operations::kv_cache::make_params(described, problem);
    core::DeviceDescription device;
    device.shared_bytes = 227 << 10;
    device.multiprocessors = 4;
    launch_ = *hopper::lower_latent(problem, device).lowering.launches().at(0);
    std::memcpy(static_cast<void*>(&params_), launch_.params.data(), sizeof params_);
    launch_.bind(&call_, &params_);
  }

  /// What went wrong in a run with that fault, or empty.
  std::string run(Fault fault = Fault::none, std::uint64_t seed = 0) {
    using Kernel = HopperLatent<Sm90Ops<FaultyLatentSm90>, kConfig>;
    g_fault = fault;
    write_maps(launch_, &call_, params_);
    memory_ = backends::emulation::memory_of(gpu::body_of<hopper::Latent>(), &params_);
    return fault_of(host_kernel<Kernel, FaultyLatentSm90>(), HopperLatentConfig::kThreads,
                    static_cast<int>(launch_.grid.x), seed, memory_, &params_);
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

std::string fault_of_run(Fault fault) { return LatentCall().run(fault); }

TEST(EmulatedHopperLatent, IsRightInAnyOrder) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    LatentCall call;
    EXPECT_EQ(call.run(Fault::none, seed), "");
    EXPECT_LT(call.error(), kFine);
  }
}

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
  LatentCall call;
  EXPECT_EQ(call.run(Fault::end_not_cleared), "");
  EXPECT_EQ(call.error(), INFINITY);
}

TEST(EmulatedHopperLatent, RegistersOfTheMatrixUnitAreItsOwn) { EXPECT_NE(fault_of_run(Fault::no_product_wait), ""); }

}  // namespace
}  // namespace tilewise::test
