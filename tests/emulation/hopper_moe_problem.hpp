// An expert layer for Hopper's kernels under emulation, with weights of 16 bits or quantised, and its values in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "backends/reference/activation_math.hpp"
#include "device/common/float16.h"
#include "device/common/float4.h"
#include "device/common/float8.h"
#include "device/common/float8_e8m0.h"
#include "device/moe/sm90/decode.h"
#include "device/moe/sm90/gather.h"
#include "device/moe/sm90/layer.h"
#include "device/moe/sm90/sort.h"
#include "device/sm90/machine_host.h"
#include "emulated.hpp"
#include "emulated_maps.hpp"

namespace tilewise::test {

using namespace device;
using Ops = Sm90Ops<HostSm90Machine>;

struct Sizes {
  std::int32_t tokens, top_k, hidden, intermediate, num_experts;
  std::int64_t first_expert = 0;
};

/// Dimensions, strides in elements and box, the innermost last, of a tensor of bf16 or of bytes.
inline gpu::TensorMap tensor_map(const void* address, std::vector<std::int64_t> dims, std::vector<std::int64_t> strides,
                                 std::vector<std::int32_t> box, DType dtype = DType::bf16) {
  gpu::TensorMap map;
  map.dtype = dtype;
  map.address = const_cast<void*>(address);
  map.rank = static_cast<int>(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) {
    map.dims[i] = static_cast<std::uint64_t>(dims[dims.size() - 1 - i]);
    map.box[i] = static_cast<std::uint32_t>(box[dims.size() - 1 - i]);
  }
  for (std::size_t i = 0; i < strides.size(); ++i) {
    map.strides[i] = static_cast<std::uint64_t>(strides[strides.size() - 1 - i]) * size_of(dtype);
  }
  return map;
}

inline constexpr std::uint16_t kPoison = 0x7FFF;

/// Quantised weights, and what they are in bf16 but for scales that multiply sums. Scales lie behind a few bytes where
/// they are moved.
template <MoeDecodeConfig C>
struct QuantisedWeights {
  static constexpr std::int64_t kBlock = C.weights == kMoeFp8Blocks ? 128 : C.weights == kMoeNvfp4 ? 16 : 32;
  std::vector<std::uint8_t> bytes, scales;
  std::vector<float> global;
  std::int64_t rows, columns, moved;  // rows of an expert

  QuantisedWeights(std::vector<std::uint16_t>& elements, std::int64_t experts, std::int64_t of_rows,
                   std::int64_t of_columns, std::int64_t moves, std::mt19937& random)
      : bytes(elements.size() / C.elements_of_byte()),
        scales(static_cast<std::size_t>(moves + experts * row_blocks(of_rows) * blocks(of_columns) * C.scale_bytes())),
        global(static_cast<std::size_t>(experts)),
        rows(of_rows),
        columns(of_columns),
        moved(moves) {
    const auto least = static_cast<int>(121 - std::log2(static_cast<double>(columns)) / 2);
    for (std::size_t i = 0; i < global.size(); ++i) global[i] = static_cast<float>(std::exp2(least - 128)) * 0.75f;
    for (std::int64_t i = 0; i < (std::ssize(scales) - moved) / C.scale_bytes(); ++i) {
      std::uint8_t* const to = scales.data() + moved + i * C.scale_bytes();
      if constexpr (C.weights == kMoeFp8Blocks) {
        const float scale = static_cast<float>(1.0 + static_cast<double>(random() % 128) / 128.0) *
                            static_cast<float>(std::exp2(least - 128));
        std::memcpy(to, &scale, sizeof scale);
      } else {
        *to = static_cast<std::uint8_t>(C.weights == kMoeNvfp4 ? 0x38 + static_cast<int>(random() % 16)
                                                               : least + static_cast<int>(random() % 4));
      }
    }
    for (std::int64_t i = 0; i < std::ssize(elements); ++i) {
      float value;
      if constexpr (C.weights == kMoeFp8Blocks) {
        auto& code = bytes[static_cast<std::size_t>(i)];
        code = static_cast<std::uint8_t>(random() % 2 * 128 + random() % 0x48);
        value = e4m3_to_float(code);
      } else {
        const auto code = static_cast<std::uint8_t>(random() % 16);
        set_e2m1(bytes.data(), i, code);
        value =
            e2m1_to_float(code) * (C.weights == kMoeNvfp4 ? e4m3_to_float(scale_at(i)) : e8m0_to_float(scale_at(i)));
      }
      elements[static_cast<std::size_t>(i)] = float_to_bf16(value);
    }
  }
  static std::int64_t blocks(std::int64_t of_columns) { return (of_columns + kBlock - 1) / kBlock; }
  static std::int64_t row_blocks(std::int64_t of_rows) { return ((of_rows - 1) >> C.scale_row_shift()) + 1; }
  [[nodiscard]] std::int64_t block_of(std::int64_t element) const {
    const std::int64_t row = element / columns, expert = row / rows;
    return (expert * row_blocks(rows) + (row % rows >> C.scale_row_shift())) * blocks(columns) +
           element % columns / kBlock;
  }
  [[nodiscard]] std::uint8_t scale_at(std::int64_t element) const {
    return scales[static_cast<std::size_t>(moved + block_of(element))];
  }
  /// That multiplies sums.
  [[nodiscard]] double rest_of(std::int64_t element) const {
    if constexpr (C.weights == kMoeNvfp4) return global[static_cast<std::size_t>(element / (rows * columns))];
    if constexpr (C.weights != kMoeFp8Blocks) return 1.0;
    float scale;
    std::memcpy(&scale, scales.data() + moved + block_of(element) * C.scale_bytes(), sizeof scale);
    return scale;
  }
  [[nodiscard]] ExpertScales of(std::int64_t gate_rows, std::int64_t value_rows) const {
    const std::int64_t row = blocks(columns) * C.scale_bytes();
    return {scales.data() + moved,
            global.data(),
            row_blocks(rows) * row,
            row,
            C.scale_bytes(),
            1,
            static_cast<std::int32_t>(gate_rows),
            static_cast<std::int32_t>(value_rows),
            static_cast<std::int32_t>(row_blocks(rows)),
            static_cast<std::int32_t>(blocks(columns)),
            C.scale_bytes(),
            moved == 0 && scales.size() % 16 == 0};
  }
};

/// A layer whose gate and up lie one behind the other, or row by row; out and what is between begin as NaN.
template <MoeDecodeConfig C>
struct Problem {
  static constexpr std::int64_t kGates = C.gated ? 2 : 1;
  Sizes size;
  bool interleaved;
  std::vector<std::uint16_t> x, gate_up, down, h, parts, out;
  std::vector<std::int64_t> ids;
  std::vector<float> weights, gate_up_bias, down_bias;
  std::vector<std::uint32_t> counters;
  std::vector<std::int32_t> offsets, sorted, rows;
  ActivationNumbers numbers{1.7f, 1.25f};
  std::optional<QuantisedWeights<C>> quantised_gate_up, quantised_down;

  /// moved: bytes that scales of quantised weights lie behind, where they begin on 16 bytes.
  Problem(Sizes sizes, unsigned seed, bool interleaves, std::int64_t moved = 0)
      : size(sizes),
        interleaved(interleaves),
        x(elements(sizes.tokens, sizes.hidden)),
        gate_up(elements(sizes.num_experts, kGates * sizes.intermediate * sizes.hidden)),
        down(elements(sizes.num_experts, sizes.intermediate * sizes.hidden)),
        h(elements(pairs(), sizes.intermediate), kPoison),
        parts(elements(pairs(), sizes.hidden), kPoison),
        out(elements(sizes.tokens, sizes.hidden), kPoison),
        ids(elements(pairs(), 1)),
        weights(elements(pairs(), 1)),
        gate_up_bias(elements(sizes.num_experts, kGates * sizes.intermediate)),
        down_bias(elements(sizes.num_experts, sizes.hidden)),
        counters(elements(pairs() + 4, 1)),
        offsets(elements(sizes.num_experts + 1, 1)),
        sorted(elements(pairs(), 1)),
        rows(elements(pairs(), 1)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto* to : {&x, &gate_up, &down}) {
      const float scale = to == &x ? 1.0f : 1.0f / std::sqrt(static_cast<float>(sizes.hidden));
      for (auto& element : *to) element = float_to_bf16(scale * normal(random));
    }
    if constexpr (C.quantised()) {
      const std::int64_t up_rows = kGates * sizes.intermediate;
      quantised_gate_up.emplace(gate_up, sizes.num_experts, up_rows, sizes.hidden, moved, random);
      quantised_down.emplace(down, sizes.num_experts, sizes.hidden, sizes.intermediate, moved, random);
    }
    for (auto* to : {&gate_up_bias, &down_bias})
      for (float& element : *to) element = normal(random);
    for (float& weight : weights) weight = std::fabs(normal(random));
    for (auto& word : counters) word = static_cast<std::uint32_t>(random());
    for (std::int32_t token = 0; token < size.tokens; ++token) {
      std::vector<std::int64_t> all(static_cast<std::size_t>(size.num_experts));
      std::iota(all.begin(), all.end(), size.first_expert);
      std::ranges::shuffle(all, random);
      std::copy_n(all.begin(), size.top_k, ids.begin() + token * size.top_k);
    }
  }

  [[nodiscard]] std::int64_t pairs() const { return std::int64_t{size.tokens} * size.top_k; }
  static std::size_t elements(std::int64_t rows, std::int64_t cols) { return static_cast<std::size_t>(rows * cols); }

  [[nodiscard]] std::int64_t gate_up_row(std::int64_t gate, std::int64_t i) const {
    return interleaved ? i * kGates + gate : gate * size.intermediate + i;
  }
  static double weight_at(const std::vector<std::uint16_t>& of, const std::optional<QuantisedWeights<C>>& quantised,
                          std::int64_t i) {
    const double value = bf16_to_float(of[static_cast<std::size_t>(i)]);
    if constexpr (C.quantised()) return value * quantised->rest_of(i);
    return value;
  }
  [[nodiscard]] double product(std::int64_t token, std::int64_t expert, std::int64_t row) const {
    double sum = 0.0;
    for (std::int64_t k = 0; k < size.hidden; ++k) {
      sum += double{bf16_to_float(x[elements(token, size.hidden) + static_cast<std::size_t>(k)])} *
             weight_at(gate_up, quantised_gate_up, (expert * kGates * size.intermediate + row) * size.hidden + k);
    }
    return sum;
  }
  [[nodiscard]] double value(std::int64_t token, std::int64_t expert, std::int64_t i, double weight) const {
    const Activation a{C.kind(), C.clamps(), double{numbers.alpha}, double{numbers.limit}};
    double sums[2] = {};
    for (std::int64_t gate = 0; gate < kGates; ++gate) {
      const std::int64_t row = gate_up_row(gate, i);
      sums[gate] = product(token, expert, row) * (C.weight_on_input ? weight : 1.0);
      if (C.biases) sums[gate] += gate_up_bias[elements(expert, kGates * size.intermediate) + elements(row, 1)];
    }
    return C.gated ? backends::reference::gated(a, sums[0], sums[1]).value
                   : backends::reference::clamped(a, sums[0]).value;
  }
  [[nodiscard]] std::vector<double> reference(std::int64_t token) const {
    std::vector<double> sum(elements(size.hidden, 1));
    for (std::int64_t j = 0; j < size.top_k; ++j) {
      const std::int64_t expert = ids[elements(token, size.top_k) + elements(j, 1)] - size.first_expert;
      if (expert < 0 || expert >= size.num_experts) continue;
      const double weight = weights[elements(token, size.top_k) + elements(j, 1)];
      std::vector<double> hidden;
      for (std::int64_t i = 0; i < size.intermediate; ++i) hidden.push_back(value(token, expert, i, weight));
      for (std::int64_t n = 0; n < size.hidden; ++n) {
        double z = C.biases ? double{down_bias[elements(expert, size.hidden) + elements(n, 1)]} : 0.0;
        for (std::int64_t i = 0; i < size.intermediate; ++i) {
          z += hidden[elements(i, 1)] *
               weight_at(down, quantised_down, (expert * size.hidden + n) * size.intermediate + i);
        }
        sum[elements(n, 1)] += z * (C.weight_on_input ? 1.0 : weight);
      }
    }
    return sum;
  }

  [[nodiscard]] MoeDecodeParams params() {
    const std::int64_t i = size.intermediate, k = size.hidden, e = size.num_experts;
    const std::int64_t row = interleaved ? kGates * k : k, gate = interleaved ? k : i * k;
    MoeDecodeParams p{};
    const void* up = gate_up.data();
    const void* back = down.data();
    const DType dtype = C.quantised() ? DType::u8 : DType::bf16;
    const std::int64_t part = C.quantised() ? C.elements_of_byte() : 1;
    const std::int32_t columns = C.quantised() ? 128 : 64;
    if constexpr (C.quantised()) {
      up = quantised_gate_up->bytes.data(), back = quantised_down->bytes.data();
      p.gate_up_scales = quantised_gate_up->of(gate / k, row / k);
      p.down_scales = quantised_down->of(0, 1);
    }
    p.gate_up_map = encoded_map(tensor_map(up, {e, i / 8, kGates, 8, k / part},
                                           {kGates * i * k / part, 8 * row / part, gate / part, row / part},
                                           {1, C.block_j() / 8, static_cast<std::int32_t>(kGates), 8, columns}, dtype));
    p.down_map =
        encoded_map(tensor_map(back, {e, k, i / part}, {i * k / part, i / part}, {1, C.block_m(), columns}, dtype));
    p.shape = {size.tokens, size.top_k, size.hidden, size.intermediate, size.num_experts, 0, size.first_expert};
    p.topk_ids = {ids.data(), size.top_k, 1, 8, 0};
    p.topk_weights = {weights.data(), size.top_k, 1, kBiasF32, 0};
    p.gate_up_bias = {gate_up_bias.data(), kGates * i, interleaved ? 1 : i, interleaved ? kGates : 1, kBiasF32, 0};
    p.down_bias = {down_bias.data(), k, 0, 1, kBiasF32, 0};
    p.x = {x.data(), k}, p.h = {h.data(), i}, p.parts = {parts.data(), k}, p.out = {out.data(), k};
    p.counters = counters.data();
    p.sorted = {offsets.data(), sorted.data(), rows.data()};
    p.numbers = numbers;
    return p;
  }

  template <class T>
  static void add(backends::emulation::GlobalMemory& memory, std::string_view name, gpu::Access access,
                  std::vector<T>& of, bool one_writer) {
    gpu::Region region{.name = name, .access = access, .element_bytes = sizeof(T)};
    region.row = static_cast<std::int64_t>(of.size()), region.one_writer = one_writer;
    memory.add(region, of.data());
  }
  static constexpr std::int32_t kMostSorted = 16;  // experts of the sort's config here
  std::string sort(std::uint64_t seed) {
    const std::int32_t chunks = ceil_div(static_cast<std::int32_t>(pairs()), MoeSortConfig::kChunk);
    std::vector<std::int32_t> counts(elements(chunks, kMostSorted), -7);
    if (chunks > 1) {
      if (std::string fault = sort_step<MoeSortConfig{4, 4, 1}>(chunks, counts, seed); !fault.empty()) return fault;
    }
    return sort_step<MoeSortConfig{4, 4, 0}>(chunks, counts, seed);
  }
  template <MoeSortConfig S>
  std::string sort_step(std::int32_t chunks, std::vector<std::int32_t>& counts, std::uint64_t seed) {
    const MoeDecodeParams p = params();
    const MoeSortParams own{p.shape, p.topk_ids, p.sorted, counts.data(), chunks, kMostSorted};
    backends::emulation::GlobalMemory memory;
    add(memory, "topk_ids", gpu::Access::read, ids, true);
    add(memory, "counts", S.counts ? gpu::Access::write : gpu::Access::read, counts, true);
    add(memory, "offsets", gpu::Access::write, offsets, true);
    add(memory, "pairs", gpu::Access::write, sorted, true);
    add(memory, "rows", gpu::Access::write, rows, true);
    return fault_of(host_kernel<Sm90MoeSort<Ops, S>, HostSm90Machine>(), S.threads(), chunks, seed, memory, &own, 1,
                    chunks);
  }
  std::string run(std::int32_t blocks, std::uint64_t seed) {
    if (C.held_ids == 0) {
      if (std::string fault = sort(seed); !fault.empty()) return fault;
    }
    const MoeDecodeParams p = params();
    backends::emulation::GlobalMemory memory;
    add(memory, "offsets", gpu::Access::read, offsets, true);
    add(memory, "pairs", gpu::Access::read, sorted, true);
    add(memory, "x", gpu::Access::read, x, true);
    add(memory, "topk_ids", gpu::Access::read, ids, true);
    add(memory, "topk_weights", gpu::Access::read, weights, true);
    add(memory, "gate_up_bias", gpu::Access::read, gate_up_bias, true);
    add(memory, "down_bias", gpu::Access::read, down_bias, true);
    if constexpr (C.quantised()) {
      add(memory, "gate_up_scales", gpu::Access::read, quantised_gate_up->scales, true);
      add(memory, "down_scales", gpu::Access::read, quantised_down->scales, true);
      add(memory, "gate_up_global", gpu::Access::read, quantised_gate_up->global, true);
      add(memory, "down_global", gpu::Access::read, quantised_down->global, true);
    }
    add(memory, "h", gpu::Access::write, h, false);          // others read it once the group's tiles have come
    add(memory, "parts", gpu::Access::write, parts, false);  // others read it once all have met
    add(memory, "out", gpu::Access::write, out, true);
    add(memory, "counters", gpu::Access::add, counters, false);
    return fault_of(host_kernel<Sm90MoeDecode<Ops, C>, HostSm90Machine>(), C.threads(), blocks, seed, memory, &p, 1,
                    blocks);
  }

  /// Of all of out, by the norms of error and reference: NaN where something was not written.
  [[nodiscard]] double error() const {
    double wrong = 0.0, all = 1e-30;
    for (std::int64_t token = 0; token < size.tokens; ++token) {
      const std::vector<double> expected = reference(token);
      for (std::int64_t n = 0; n < size.hidden; ++n) {
        const double off = bf16_to_float(out[elements(token, size.hidden) + elements(n, 1)]) - expected[elements(n, 1)];
        wrong += off * off, all += expected[elements(n, 1)] * expected[elements(n, 1)];
      }
    }
    return std::sqrt(wrong / all);
  }
};

inline constexpr double kRounding = 4e-3;  // of h, of each part and of out to bf16

constexpr MoeDecodeConfig config(std::int32_t block_n, std::int32_t held_ids, std::int32_t stages,
                                 std::int32_t consumers = 1, std::int32_t row_blocks = 1) {
  MoeDecodeConfig c;
  c.block_n = block_n, c.held_ids = held_ids, c.stages = stages, c.consumers = consumers, c.row_blocks = row_blocks;
  return c;
}

template <MoeDecodeConfig C>
void compute(Sizes size, std::int32_t blocks, unsigned seed, bool interleaved = false, std::int64_t moved = 0) {
  Problem<C> problem(size, seed, interleaved, moved);
  for (std::uint64_t run = 0; run < 2; ++run) {  // the second one finds the counters as the first one has left them
    std::ranges::fill(problem.out, kPoison);
    EXPECT_EQ(problem.run(blocks, seed + run), "");
    EXPECT_LT(problem.error(), kRounding);
  }
}

}  // namespace tilewise::test
