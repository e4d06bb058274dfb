// The kernels that sort pairs by expert and multiply gathered rows by gates and ups, by themselves on emulated
// machines: results for ids of any kind, and that faults planted in them are found, by the checks or by the result.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backends/portable/moe/kernels.hpp"
#include "device/moe/sort.h"
#include "device/moe/up.h"
#include "device/tile/ops_cdna.h"
#include "device/tile/ops_rdna.h"
#include "device/tile/ops_sm80.h"
#include "emulated.hpp"

namespace tilewise::test {
namespace {

using namespace device;

enum class Fault { none, no_barrier, wrong_line };
Fault g_fault = Fault::none;

/// A machine with the one fault of the run under way.
template <class Machine>
struct Faulty : Machine {
  static void barrier() {
    if (g_fault != Fault::no_barrier) Machine::barrier();
  }
  template <class T>
  static T load_global(const T* from) {
    T value = Machine::load_global(from);
    // Rows' tokens, and whatever else is an integer of 32 bits and small.
    if constexpr (std::is_same_v<T, std::int32_t>) {
      if (g_fault == Fault::wrong_line && value > 0 && value < 8) value -= 1;
    }
    return value;
  }
};

template <class Params>
backends::emulation::GlobalMemory memory_of(const Params& params,
                                            void (*visit)(const Params&, const gpu::RegionVisitor&)) {
  backends::emulation::GlobalMemory memory;
  visit(params, [&](const gpu::Region& region, std::size_t offset) {
    const void* data = nullptr;
    std::memcpy(&data, reinterpret_cast<const std::byte*>(&params) + offset, sizeof data);
    memory.add(region, data);
  });
  return memory;
}

/// Pairs with ids of every kind, and where they belong.
struct Sorting {
  std::int32_t tokens, top_k, experts;
  std::vector<std::int64_t> ids;
  std::vector<float> weights;
  std::vector<std::int32_t> offsets, row_tokens, rows, counts;
  std::vector<float> row_weights;
  ExpertSortParams params{};

  Sorting(std::int32_t tokens_, std::int32_t top_k_, std::int32_t experts_, std::uint32_t seed)
      : tokens(tokens_), top_k(top_k_), experts(experts_) {
    std::mt19937 random(seed);
    constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max(), kFirst = 5;
    const std::int64_t others[] = {-1, kFirst - 1, kFirst + experts, kFar, -kFar - 1, std::int64_t{1} << 32};
    const auto pairs = static_cast<std::size_t>(tokens * top_k);
    for (std::size_t i = 0; i < pairs; ++i) {
      ids.push_back(random() % 4 == 0 ? others[random() % std::size(others)]
                                      : kFirst + static_cast<std::int64_t>(random() % static_cast<unsigned>(experts)));
      weights.push_back(static_cast<float>(i));
    }
    offsets.assign(static_cast<std::size_t>(experts) + 1, -7);
    row_tokens.assign(pairs, -7), rows.assign(pairs, -7), row_weights.assign(pairs, -7.0f);
    params.chunks = static_cast<std::int32_t>(ceil_div(pairs, std::size_t{ExpertSortConfig::kChunk}));
    counts.assign(static_cast<std::size_t>(params.chunks * experts), -7);
    params.shape = {tokens, top_k, 8, 8, experts, 0, kFirst};
    params.topk_ids = {ids.data(), top_k, 1, 8, 0};
    params.topk_weights = {weights.data(), top_k, 1, kBiasF32, 0};
    params.routed = {offsets.data(), row_tokens.data(), row_weights.data(), rows.data()};
    params.counts = counts.data();
  }

  template <class Ops>
  std::string run() {
    using Machine = typename Ops::Machine;
    constexpr auto config = [](std::int32_t counts_first) {
      ExpertSortConfig c;
      c.experts = 256;
      c.counts = counts_first;
      c.waves = 256 / Machine::kLanes;
      return c;
    };
    constexpr ExpertSortConfig kCount = config(1), kPlace = config(0);
    const auto launch = [&](const HostKernel* kernel) {
      return fault_of(kernel, 256, params.chunks, 3,
                      memory_of(params, static_cast<void (*)(const ExpertSortParams&, const gpu::RegionVisitor&)>(
                                            backends::portable::for_each_pointer)),
                      &params);
    };
    if (params.chunks > 1) {
      if (std::string fault = launch(host_kernel<ExpertSort<Ops, kCount>, Machine>()); !fault.empty()) return fault;
    }
    return launch(host_kernel<ExpertSort<Ops, kPlace>, Machine>());
  }

  void expect_sorted() const {
    std::int32_t next = 0;
    for (std::int32_t e = 0; e < experts; ++e) {
      ASSERT_EQ(offsets[static_cast<std::size_t>(e)], next) << e;
      for (std::size_t pair = 0; pair < ids.size(); ++pair) {
        if (ids[pair] != 5 + e) continue;
        const auto row = static_cast<std::size_t>(next);
        ASSERT_EQ(rows[pair], next) << pair;
        ASSERT_EQ(row_tokens[row], static_cast<std::int32_t>(pair) / top_k) << pair;
        ASSERT_EQ(row_weights[row], weights[pair]) << pair;
        ++next;
      }
    }
    ASSERT_EQ(offsets.back(), next);
    for (std::size_t pair = 0; pair < ids.size(); ++pair)
      ASSERT_EQ(rows[pair] == kNobody, ids[pair] < 5 || ids[pair] >= 5 + experts) << pair;
  }
};

template <class Ops>
struct ExpertKernels : testing::Test {
  void TearDown() override { g_fault = Fault::none; }
};
using Machines = testing::Types<Sm80Ops<Faulty<HostSm80Machine>>, CdnaOps<Faulty<HostCdnaMachine>>,
                                RdnaOps<Faulty<HostRdnaMachine>>>;
TYPED_TEST_SUITE(ExpertKernels, Machines);

TYPED_TEST(ExpertKernels, SortPairsWithAnyIds) {
  for (const auto& [tokens, top_k, experts] :
       {std::tuple{1, 1, 1}, std::tuple{9, 3, 7}, std::tuple{511, 2, 200}, std::tuple{700, 4, 33}}) {
    Sorting sorting(tokens, top_k, experts, static_cast<std::uint32_t>(tokens));
    ASSERT_EQ(sorting.template run<TypeParam>(), "");
    sorting.expect_sorted();
  }
}

TYPED_TEST(ExpertKernels, SortWithoutABarrierIsFound) {
  Sorting sorting(300, 3, 40, 7);
  g_fault = Fault::no_barrier;
  EXPECT_NE(sorting.template run<TypeParam>(), "");
}

/// Gates and ups of one expert and rows of tokens in any order, in small numbers that bf16 has.
struct Gating {
  static constexpr std::int32_t kTokens = 9, kHidden = 24, kIntermediate = 40;
  std::vector<std::uint16_t> x, gate_up, h;
  std::vector<std::int32_t> offsets{0, kTokens}, tokens, rows;
  std::vector<float> weights;
  ExpertUpParams params{};

  Gating() : x(kTokens * kHidden), gate_up(2 * kIntermediate * kHidden), h(kTokens * kIntermediate), weights(kTokens) {
    std::mt19937 random(11);
    for (auto* numbers : {&x, &gate_up})
      for (std::uint16_t& number : *numbers) number = float_to_bf16(static_cast<float>(random() % 9) * 0.25f - 1.0f);
    for (std::int32_t row = 0; row < kTokens; ++row) tokens.push_back((row * 5 + 3) % kTokens), rows.push_back(row);
    params.shape = {kTokens, 1, kHidden, kIntermediate, 1, 0, 0};
    params.routed = {offsets.data(), tokens.data(), weights.data(), rows.data()};
    params.a.data = x.data(), params.a.line_stride = 2 * kHidden;
    params.a.experts = 1, params.a.lines = kTokens, params.a.length = kHidden, params.a.role = kExpertX;
    params.b.data = gate_up.data(), params.b.line_stride = 2 * kHidden;
    params.b.experts = 1, params.b.lines = 2 * kIntermediate, params.b.length = kHidden, params.b.role = kExpertGateUp;
    params.h = h.data(), params.h_type = kNumberBf16;
    params.gate_up_rows = 2 * kIntermediate;
  }

  template <class Ops>
  std::string run() {
    using Machine = typename Ops::Machine;
    constexpr ExpertUpConfig kConfig = [] {
      ExpertUpConfig c;
      c.a.gathered = 1;
      c.block_m = 32, c.block_n = 128, c.block_k = 32;
      c.waves = c.waves_n = 2;
      c.b.halves = c.wave_columns();
      c.activation = static_cast<std::int32_t>(ActivationKind::relu);
      return c;
    }();
    params.n_tiles = ceil_div(kIntermediate, kConfig.values());
    return fault_of(host_kernel<ExpertUp<Ops, kConfig>, Machine>(), 2 * Machine::kLanes, params.n_tiles, 5,
                    memory_of(params, static_cast<void (*)(const ExpertUpParams&, const gpu::RegionVisitor&)>(
                                          backends::portable::for_each_pointer)),
                    &params);
  }

  [[nodiscard]] bool is_right() const {
    const auto dot = [this](std::int32_t token, std::int32_t row) {
      double sum = 0.0;
      for (std::int32_t k = 0; k < kHidden; ++k) {
        sum += double{bf16_to_float(x[static_cast<std::size_t>(token * kHidden + k)])} *
               double{bf16_to_float(gate_up[static_cast<std::size_t>(row * kHidden + k)])};
      }
      return sum;
    };
    for (std::int32_t row = 0; row < kTokens; ++row) {
      for (std::int32_t i = 0; i < kIntermediate; ++i) {
        const std::int32_t token = tokens[static_cast<std::size_t>(row)];
        const double expected = std::max(dot(token, i), 0.0) * dot(token, kIntermediate + i);
        const double given = bf16_to_float(h[static_cast<std::size_t>(row * kIntermediate + i)]);
        if (!(std::abs(given - expected) <= 0.005 * std::abs(expected))) return false;
      }
    }
    return true;
  }
};

TYPED_TEST(ExpertKernels, MultiplyGatesAndUps) {
  Gating gating;
  ASSERT_EQ(gating.template run<TypeParam>(), "");
  EXPECT_TRUE(gating.is_right());
}

TYPED_TEST(ExpertKernels, RowsOfOtherTokensAreFound) {
  Gating gating;
  g_fault = Fault::wrong_line;
  const std::string fault = gating.template run<TypeParam>();
  EXPECT_TRUE(!fault.empty() || !gating.is_right());
}

TYPED_TEST(ExpertKernels, UpsFromAnotherPlaceAreFound) {
  Gating gating;
  gating.params.shape.intermediate = Gating::kIntermediate - 1;
  const std::string fault = gating.template run<TypeParam>();
  EXPECT_TRUE(!fault.empty() || !gating.is_right());
}

TYPED_TEST(ExpertKernels, ProductsWithoutABarrierAreFound) {
  Gating gating;
  g_fault = Fault::no_barrier;
  EXPECT_NE(gating.template run<TypeParam>(), "");
}

}  // namespace
}  // namespace tilewise::test
