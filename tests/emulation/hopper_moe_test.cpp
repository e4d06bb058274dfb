// Hopper's expert layers under emulation: values beside double, whatever routing, layouts and edges.
#include "hopper_moe_problem.hpp"

namespace tilewise::test {
namespace {

TEST(HopperMoeDecode, ComputesALayer) { compute<config(8, 1, 3)>({1, 2, 128, 64, 4}, 2, 1); }
TEST(HopperMoeDecode, EndsWhereTensorsEnd) {
  compute<config(8, 1, 4)>({5, 3, 200, 40, 6}, 3, 2);
  compute<config(16, 2, 3, 2)>({11, 4, 72, 104, 5}, 2, 3, true);
}
TEST(HopperMoeDecode, HasSeveralRowBlocks) { compute<config(32, 2, 3, 2, 2)>({21, 2, 136, 136, 3}, 2, 4); }
TEST(HopperMoeDecode, ReadsWhatTheSortLeft) { compute<config(16, 0, 4)>({150, 2, 72, 40, 9}, 3, 5); }

/// Ids outside the range, in any spelling, and the same expert several times in a token.
TEST(HopperMoeDecode, TakesAnyIds) {
  constexpr std::int64_t kFar = std::int64_t{1} << 32;
  const auto ids = [](auto& problem) {
    const std::vector<std::int64_t> hostile{-1, 7, 3, 3, 3, 3, 11, kFar + 4, INT64_MIN, INT64_MAX, 10, 10, 10, 10, 3};
    for (std::size_t i = 0; i < problem.ids.size(); ++i) problem.ids[i] = hostile[i % hostile.size()];
  };
  const auto check = [&](auto problem) {
    ids(problem);
    EXPECT_EQ(problem.run(2, 7), "");
    EXPECT_LT(problem.error(), kRounding);
  };
  check(Problem<config(8, 2, 4)>({8, 6, 72, 40, 8, 3}, 6, false));
  check(Problem<config(8, 0, 4)>({8, 6, 72, 40, 8, 3}, 6, false));
}

/// The kernels for many rows, on the problem of those for few.
template <MoeLayerConfig L>
constexpr MoeDecodeConfig kSameLayer = [] {
  MoeDecodeConfig c = config(8, 0, 4);
  c.activation = L.activation, c.clamp = L.clamp, c.gated = L.gated, c.weight_on_input = L.weight_on_input;
  c.biases = L.biases;
  return c;
}();
template <MoeLayerConfig L>
struct LayerProblem : Problem<kSameLayer<L>> {
  std::vector<std::uint16_t> gathered;
  std::vector<float> row_weights;

  LayerProblem(Sizes sizes, unsigned seed, bool interleaves)
      : Problem<kSameLayer<L>>(sizes, seed, interleaves),
        gathered(this->elements(this->pairs(), sizes.hidden), kPoison),
        row_weights(this->elements(this->pairs(), 1), NAN) {}

  std::string gather(std::uint64_t seed) {
    constexpr MoeGatherConfig kGather{2};
    const MoeDecodeParams p = this->params();
    MoeGatherParams own{};
    own.shape = p.shape, own.topk_weights = p.topk_weights, own.sorted = p.sorted, own.x = p.x;
    own.rows = {gathered.data(), this->size.hidden}, own.row_weights = row_weights.data();
    backends::emulation::GlobalMemory memory;
    this->add(memory, "topk_weights", gpu::Access::read, this->weights, true);
    this->add(memory, "places", gpu::Access::read, this->rows, true);
    this->add(memory, "x", gpu::Access::read, this->x, true);
    this->add(memory, "rows", gpu::Access::write, gathered, true);
    this->add(memory, "row_weights", gpu::Access::write, row_weights, true);
    return fault_of(host_kernel<Sm90MoeGather<Ops, kGather>, HostSm90Machine>(), kGather.threads(), 3, seed, memory,
                    &own, 1, 3);
  }
  [[nodiscard]] MoeLayerParams layer_params() {
    const std::int64_t i = this->size.intermediate, k = this->size.hidden, e = this->size.num_experts;
    constexpr std::int64_t kGates = L.gated ? 2 : 1;
    const std::int64_t row = this->interleaved ? kGates * k : k, gate = this->interleaved ? k : i * k;
    const MoeDecodeParams d = this->params();
    MoeLayerParams p{};
    for (std::int32_t box = 0; box < kRowBoxes; ++box) {
      p.rows_map[box] = encoded_map(tensor_map(gathered.data(), {this->pairs(), k}, {k}, {kMostBoxRows >> box, 64}));
      p.h_map[box] = encoded_map(tensor_map(this->h.data(), {this->pairs(), i}, {i}, {kMostBoxRows >> box, 64}));
    }
    p.gate_up_map =
        encoded_map(tensor_map(this->gate_up.data(), {e, i / 8, kGates, 8, k}, {kGates * i * k, 8 * row, gate, row},
                               {1, L.gated ? 8 : 16, static_cast<std::int32_t>(kGates), 8, 64}));
    gpu::TensorMap halves = tensor_map(this->h.data(), {this->pairs(), i}, {i}, {16, L.gated ? 32 : 64});
    if (L.gated) halves.swizzle = gpu::Swizzle::bytes64;
    p.h_store_map = encoded_map(halves);
    p.down_map = encoded_map(tensor_map(this->down.data(), {e, k, i}, {i * k, i}, {1, 128, 64}));
    p.parts_map = encoded_map(tensor_map(this->parts.data(), {this->pairs(), k}, {k}, {16, 64}));
    p.shape = d.shape, p.row_weights = row_weights.data(), p.sorted = d.sorted;
    p.gate_up_bias = d.gate_up_bias, p.down_bias = d.down_bias;
    p.h = d.h, p.parts = d.parts, p.out = d.out;
    p.counters = d.counters, p.numbers = d.numbers;
    return p;
  }
  std::string run(std::int32_t blocks, std::uint64_t seed) {
    if (std::string fault = this->sort(seed); !fault.empty()) return fault;
    if (std::string fault = gather(seed); !fault.empty()) return fault;
    const MoeLayerParams p = layer_params();
    backends::emulation::GlobalMemory memory;
    this->add(memory, "offsets", gpu::Access::read, this->offsets, true);
    this->add(memory, "pairs", gpu::Access::read, this->sorted, true);
    this->add(memory, "rows", gpu::Access::read, this->rows, true);
    this->add(memory, "row_weights", gpu::Access::read, row_weights, true);
    this->add(memory, "gate_up_bias", gpu::Access::read, this->gate_up_bias, true);
    this->add(memory, "down_bias", gpu::Access::read, this->down_bias, true);
    this->add(memory, "h", gpu::Access::write, this->h, false);
    this->add(memory, "parts", gpu::Access::write, this->parts, false);
    this->add(memory, "out", gpu::Access::write, this->out, true);
    this->add(memory, "counters", gpu::Access::add, this->counters, false);
    return fault_of(host_kernel<Sm90MoeLayer<Ops, L>, HostSm90Machine>(), L.threads(), blocks, seed, memory, &p,
                    L.cluster, blocks);
  }
};

template <MoeLayerConfig L>
void compute_layer(Sizes size, std::int32_t blocks, unsigned seed, bool interleaved = false) {
  LayerProblem<L> problem(size, seed, interleaved);
  if (size.first_expert != 0)
    for (std::size_t i = 0; i < problem.ids.size(); i += 3) problem.ids[i] = -1;
  for (std::uint64_t run = 0; run < 2; ++run) {
    std::ranges::fill(problem.out, kPoison);
    EXPECT_EQ(problem.run(blocks, seed + run), "");
    EXPECT_LT(problem.error(), kRounding);
  }
}
constexpr MoeLayerConfig layer_config(std::int32_t block_n, std::int32_t stages, std::int32_t cluster,
                                      std::int32_t column_step = 32) {
  MoeLayerConfig c;
  c.column_step = column_step;
  c.block_n = block_n, c.stages = stages, c.cluster = cluster;
  return c;
}
TEST(HopperMoeLayer, ComputesALayer) { compute_layer<layer_config(64, 3, 1)>({70, 2, 136, 72, 3}, 2, 20); }
TEST(HopperMoeLayer, LoadsRowsInClusters) {
  compute_layer<layer_config(128, 2, 2)>({180, 2, 200, 136, 2}, 4, 21, true);
  compute_layer<layer_config(256, 2, 2, 16)>({310, 2, 72, 40, 2}, 4, 26);
  compute_layer<layer_config(192, 2, 2, 16)>({122, 3, 72, 40, 3}, 2, 27);
  compute_layer<layer_config(64, 3, 2)>({50, 3, 72, 40, 7, 5}, 2, 22);
}
constexpr MoeLayerConfig activated_layer(ActivationKind kind, ActivationClamp clamp, bool gated, bool on_input) {
  MoeLayerConfig c = layer_config(128, 2, 2);
  c.activation = static_cast<std::int32_t>(kind), c.clamp = static_cast<std::int32_t>(clamp);
  c.gated = gated, c.weight_on_input = on_input, c.biases = 1;
  return c;
}
TEST(HopperMoeLayer, Activates) {
  constexpr Sizes kSizes{60, 3, 72, 40, 3};
  compute_layer<activated_layer(ActivationKind::swiglu_oai, ActivationClamp::before, true, false)>(kSizes, 2, 23, true);
  compute_layer<activated_layer(ActivationKind::gelu, ActivationClamp::after, true, true)>(kSizes, 2, 24);
  compute_layer<activated_layer(ActivationKind::relu_squared, ActivationClamp::none, false, false)>(kSizes, 2, 25);
}

/// Nobody's tokens are 0, and a NaN stays in its own row.
template <class P>
void compute_special(P problem) {
  std::ranges::fill(problem.ids, -1);
  EXPECT_EQ(problem.run(2, 30), "");
  EXPECT_TRUE(std::ranges::all_of(problem.out, [](std::uint16_t bits) { return bits == 0; }));

  for (std::size_t i = 0; i < problem.ids.size(); ++i) problem.ids[i] = static_cast<std::int64_t>(i % 2);
  problem.x[3] = kPoison;
  EXPECT_EQ(problem.run(2, 31), "");
  for (std::size_t i = 0; i < problem.out.size(); ++i) {
    const bool first = i < static_cast<std::size_t>(problem.size.hidden);
    EXPECT_EQ(std::isnan(bf16_to_float(problem.out[i])), first) << i;
  }
}
TEST(HopperMoeDecode, LeavesNobodysTokensAndNanAlone) {
  compute_special(Problem<config(8, 1, 4)>({5, 2, 72, 40, 3}, 30, false));
}
TEST(HopperMoeLayer, LeavesNobodysTokensAndNanAlone) {
  compute_special(LayerProblem<layer_config(64, 3, 2)>({20, 2, 72, 40, 3}, 31, false));
}

TEST(HopperMoeSort, OrdersPairsByExpert) {
  for (const Sizes size :
       {Sizes{1, 1, 8, 8, 1}, Sizes{70, 3, 8, 8, 13}, Sizes{300, 2, 8, 8, 6}, Sizes{900, 3, 8, 8, 16}}) {
    Problem<config(8, 0, 4)> problem(size, 8, false);
    for (std::size_t i = 0; i < problem.ids.size(); i += 5) problem.ids[i] = -1;
    ASSERT_EQ(problem.sort(9), "");
    std::vector<std::int32_t> expected;
    for (std::int64_t expert = 0; expert < size.num_experts; ++expert) {
      EXPECT_EQ(problem.offsets[static_cast<std::size_t>(expert)], static_cast<std::int32_t>(expected.size()));
      for (std::size_t i = 0; i < problem.ids.size(); ++i) {
        if (problem.ids[i] == expert) expected.push_back(static_cast<std::int32_t>(i));
      }
    }
    EXPECT_EQ(problem.offsets.back(), static_cast<std::int32_t>(expected.size()));
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), problem.sorted.begin()));
    for (std::size_t i = 0; i < problem.ids.size(); ++i) {
      const auto place = std::ranges::find(expected, static_cast<std::int32_t>(i));
      EXPECT_EQ(problem.rows[i], place == expected.end() ? -1 : place - expected.begin());
    }
  }
}

constexpr MoeDecodeConfig activated(ActivationKind kind, ActivationClamp clamp, bool gated, bool on_input) {
  MoeDecodeConfig c = config(8, 1, 4);
  c.activation = static_cast<std::int32_t>(kind), c.clamp = static_cast<std::int32_t>(clamp);
  c.gated = gated, c.weight_on_input = on_input, c.biases = 1;
  return c;
}
TEST(HopperMoeDecode, Activates) {
  using enum ActivationKind;
  using enum ActivationClamp;
  constexpr Sizes kSizes{5, 3, 72, 40, 4};
  compute<activated(swiglu_oai, before, true, false)>(kSizes, 2, 10, true);
  compute<activated(gelu, after, true, true)>(kSizes, 2, 11);
  compute<activated(gelu_tanh, none, false, false)>(kSizes, 2, 12);
  compute<activated(relu, none, false, true)>(kSizes, 2, 13);
  compute<activated(relu_squared, before, false, false)>(kSizes, 2, 14);
}

}  // namespace
}  // namespace tilewise::test
