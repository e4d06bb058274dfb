// Gradients of experts' weights on Hopper's emulated machine: sums over ragged rows beside double, and that rows of
// others reach none of them. The whole backward pass stands in moe_test.cpp.
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "device/common/float16.h"
#include "device/moe/sm90/backward/dw.h"
#include "device/sm90/machine_host.h"
#include "emulated.hpp"
#include "emulated_maps.hpp"

namespace tilewise::test {
namespace {

using namespace device;
using Ops = Sm90Ops<HostSm90Machine>;

constexpr std::uint16_t kPoison = 0x7FFF;
constexpr double kRounding = 2e-3;  // of bf16: 2^-9 at most, a normal deviation of 1.7e-3

std::size_t elements(std::int64_t rows, std::int64_t columns) { return static_cast<std::size_t>(rows * columns); }

/// Dimensions and box, the innermost last, of a contiguous tensor of bf16.
device::TensorMap map_of(const void* address, const std::vector<std::int64_t>& dims,
                         const std::vector<std::int32_t>& box) {
  gpu::TensorMap map;
  map.address = const_cast<void*>(address);
  map.rank = static_cast<int>(dims.size());
  std::uint64_t stride = sizeof(std::uint16_t);
  for (std::size_t i = 0; i < dims.size(); ++i) {
    map.dims[i] = static_cast<std::uint64_t>(dims[dims.size() - 1 - i]);
    map.box[i] = static_cast<std::uint32_t>(box[dims.size() - 1 - i]);
    stride *= map.dims[i];
    if (i + 1 < dims.size()) map.strides[i] = stride;
  }
  return encoded_map(map);
}

/// Rows of two operands by expert, and rows of nobody behind them, which are NaN.
template <MoeDwConfig C>
struct Problem {
  static constexpr std::int32_t kNobodys = 9;
  std::int32_t rows, columns;
  std::vector<std::int32_t> offsets{0};
  std::vector<std::uint16_t> a, b, out;

  Problem(const std::vector<std::int32_t>& counts, std::int32_t num_rows, std::int32_t num_columns, unsigned seed)
      : rows(num_rows), columns(num_columns) {
    for (const std::int32_t count : counts) offsets.push_back(offsets.back() + count);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    a.assign(elements(all(), rows), kPoison), b.assign(elements(all(), columns), kPoison);
    for (std::size_t i = 0; i < elements(offsets.back(), rows); ++i) a[i] = float_to_bf16(normal(random));
    for (std::size_t i = 0; i < elements(offsets.back(), columns); ++i) b[i] = float_to_bf16(normal(random));
    out.assign(elements(experts() * rows, columns), kPoison);
  }
  [[nodiscard]] std::int64_t experts() const { return std::ssize(offsets) - 1; }
  [[nodiscard]] std::int64_t all() const { return offsets.back() + kNobodys; }

  std::string run(std::int32_t blocks, std::uint64_t seed) {
    MoeDwParams p{};
    p.a_map = map_of(a.data(), {all(), rows}, {C.depth, 64});
    p.b_map = map_of(b.data(), {all(), columns}, {C.depth / C.cluster, 64});
    p.out_map = map_of(out.data(), {experts(), rows, columns}, {1, 16, 64});
    p.grid = {ceil_div(rows, C.kBlockM * C.cluster), ceil_div(columns, C.block_n), 2, 0};
    p.offsets = offsets.data(), p.out = out.data();
    p.expert_stride = std::int64_t{rows} * columns, p.row_stride = columns;
    p.num_experts = static_cast<std::int32_t>(experts()), p.rows = rows, p.columns = columns;
    backends::emulation::GlobalMemory memory;
    gpu::Region read{.name = "offsets", .element_bytes = sizeof(std::int32_t)};
    read.row = std::ssize(offsets);
    memory.add(read, offsets.data());
    gpu::Region written{.name = "out", .access = gpu::Access::write, .element_bytes = sizeof(std::uint16_t)};
    written.row = std::ssize(out);
    memory.add(written, out.data());
    return fault_of(host_kernel<Sm90MoeDw<Ops, C>, HostSm90Machine>(), C.threads(), blocks, seed, memory, &p, C.cluster,
                    blocks);
  }

  /// Of an expert, by the norms of error and reference: NaN where something was not written, 0 without rows.
  [[nodiscard]] double error(std::int64_t expert) const {
    double wrong = 0.0, sum = 1e-30;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        double expected = 0.0;
        for (std::int64_t t = offsets[static_cast<std::size_t>(expert)];
             t < offsets[static_cast<std::size_t>(expert) + 1]; ++t) {
          expected += double{bf16_to_float(a[elements(t, rows) + elements(r, 1)])} *
                      bf16_to_float(b[elements(t, columns) + elements(c, 1)]);
        }
        const double off = bf16_to_float(out[elements(expert * rows + r, columns) + elements(c, 1)]) - expected;
        wrong += off * off, sum += expected * expected;
      }
    }
    return std::sqrt(wrong / sum);
  }
};

constexpr MoeDwConfig config(std::int32_t block_n, std::int32_t depth, std::int32_t stages, std::int32_t cluster) {
  MoeDwConfig c;
  c.block_n = block_n, c.depth = depth, c.stages = stages, c.cluster = cluster;
  return c;
}

template <MoeDwConfig C>
void compute(const std::vector<std::int32_t>& counts, std::int32_t rows, std::int32_t columns, std::int32_t blocks,
             unsigned seed) {
  Problem<C> problem(counts, rows, columns, seed);
  ASSERT_EQ(problem.run(blocks, seed), "");
  for (std::int64_t expert = 0; expert < problem.experts(); ++expert)
    EXPECT_LT(problem.error(expert), kRounding) << expert;
}

TEST(HopperMoeDw, SumsRaggedRows) {
  compute<config(128, 32, 3, 1)>({5, 0, 33, 1, 64, 17}, 136, 72, 2, 1);
  compute<config(256, 64, 2, 2)>({65, 0, 16, 130}, 264, 200, 4, 2);
}

TEST(HopperMoeDw, KeepsNanToItsExpert) {
  Problem<config(128, 32, 3, 1)> problem({7, 20, 9}, 72, 40, 3);
  for (std::int32_t r = 0; r < problem.rows; ++r) problem.a[elements(7 + 3, problem.rows) + elements(r, 1)] = kPoison;
  ASSERT_EQ(problem.run(1, 4), "");
  EXPECT_LT(problem.error(0), kRounding);
  EXPECT_TRUE(std::isnan(problem.error(1)));
  EXPECT_LT(problem.error(2), kRounding);
}

}  // namespace
}  // namespace tilewise::test
