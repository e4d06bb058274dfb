// Products of tiles under emulation beside sums in double: on each machine, operands of every type either way round,
// rows by an index, scales, edges, and groups by numbers that are wrong.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "device/common/float16.h"
#include "device/common/float4.h"
#include "device/product/groups.h"
#include "device/product/product_of.h"
#include "device/tile/ops_cdna.h"
#include "device/tile/ops_rdna.h"
#include "device/tile/ops_sm80.h"
#include "emulated.hpp"

namespace tilewise::test {
namespace {

using namespace device;

struct ProductParams {
  ProductOperand a, b;
  const std::int32_t* index;
  std::int64_t m, n, k;
  float* out;
};

/// out = a b^T of fp32, a block for each tile.
template <class Ops, ProductConfig C>
struct ProductKernel {
  using Params = ProductParams;
  using Multiply = ProductOf<Ops, C>;
  using Shared = typename Multiply::Shared;
  static void run(const Params& p, Shared& shared) {
    using Machine = typename Ops::Machine;
    const auto tiles = static_cast<int>(ceil_div(p.n, std::int64_t{C.block_n}));
    const std::int64_t first_row = Machine::block() / tiles * C.block_m;
    const std::int64_t first_col = Machine::block() % tiles * C.block_n;
    const auto rows = static_cast<std::int32_t>(std::min<std::int64_t>(p.m - first_row, C.block_m));
    const auto cols = static_cast<std::int32_t>(std::min<std::int64_t>(p.n - first_col, C.block_n));
    typename Multiply::Sums sums(Machine::wave());
    sums.clear();
    Multiply::run(shared, operand_rows<C.a>(p.a, 0, first_row, rows, p.index),
                  operand_rows<C.b>(p.b, 0, first_col, cols), 0, p.k, sums);
    sums.for_each_run([&](int row, int col, const auto& run) {
      for (int i = 0; i < Multiply::Sums::kRun; ++i) {
        if (row >= rows || col + i >= cols) continue;
        Machine::store_global(p.out + (first_row + row) * p.n + first_col + col + i, run.value[i]);
      }
    });
  }
};

/// One side: its bytes, and what they stand for.
struct Side {
  std::int64_t rows, depth, line, blocks;
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint8_t> scales;
  std::vector<double> value;  // with scales, [rows, depth]
  ProductOperand params{};
};

float drawn_scale(int type, std::mt19937& random, std::vector<std::uint8_t>& to) {
  if (type == kScaleF32) {
    const float scale = std::uniform_real_distribution<float>(0.5f, 2.0f)(random);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&scale);
    to.insert(to.end(), bytes, bytes + sizeof scale);
    return scale;
  }
  const auto byte = static_cast<std::uint8_t>(type == kScaleE8m0 ? 127 + static_cast<int>(random() % 5) - 2
                                                                 : 0x30 + static_cast<int>(random() % 16));
  to.push_back(byte);
  return scale_value(type, byte);
}

Side drawn_side(const OperandConfig& o, std::int64_t rows, std::int64_t depth, std::mt19937& random) {
  Side side{rows, depth, 0, 0, {}, {}, std::vector<double>(static_cast<std::size_t>(rows * depth)), {}};
  const std::int64_t lines = o.transposed ? depth : rows, length = o.transposed ? rows : depth;
  const int bits = bits_of_product_type(o.type);
  // Unaligned lines have an odd length, the others end on 16 bytes.
  const std::int64_t granted = o.vectors ? 128 : 8;
  side.line = (length * bits + granted - 1) / granted * granted / 8 + (o.vectors    ? 0
                                                                       : bits == 32 ? 4
                                                                       : bits == 16 ? 2
                                                                                    : 1);
  side.bytes.assign(static_cast<std::size_t>(lines * side.line), 0);
  std::normal_distribution<float> normal;
  std::vector<float> scale;
  const std::int64_t scale_rows = o.scale_rows == 0 ? rows : o.scale_rows;
  const std::int64_t scale_depth = o.scale_depth == 0 ? depth : o.scale_depth;
  side.blocks = ceil_div(depth, scale_depth);
  if (o.scale_use != kScaleNever)
    for (std::int64_t i = 0; i < ceil_div(rows, scale_rows) * side.blocks; ++i)
      scale.push_back(drawn_scale(o.scale_type, random, side.scales));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t d = 0; d < depth; ++d) {
      std::uint8_t* line = side.bytes.data() + (o.transposed ? d : r) * side.line;
      const std::int64_t at = o.transposed ? r : d;
      const float number = normal(random);
      float value = number;
      if (o.type == kProductF32) reinterpret_cast<float*>(line)[at] = number;
      if (o.type == kProductBf16)
        value = bf16_to_float(reinterpret_cast<std::uint16_t*>(line)[at] = float_to_bf16(number));
      if (o.type == kProductF16)
        value = f16_to_float(reinterpret_cast<std::uint16_t*>(line)[at] = float_to_f16(number));
      if (o.type == kProductE4m3) value = e4m3_to_float(line[at] = float_to_e4m3(number));
      if (o.type == kProductE2m1) {
        set_e2m1(line, at, float_to_e2m1(number));
        value = e2m1_to_float(e2m1_at(line, at));
      }
      const std::int64_t block = r / scale_rows * side.blocks + d / scale_depth;
      side.value[static_cast<std::size_t>(r * depth + d)] =
          double{value} * (scale.empty() ? 1.0 : double{scale[static_cast<std::size_t>(block)]});
    }
  }
  side.params.data = side.bytes.data(), side.params.line_stride = side.line;
  side.params.scales.data = side.scales.data();
  side.params.scales.row_stride = side.blocks, side.params.scales.depth_stride = 1;
  return side;
}

/// Some elements of every row of bytes become -0, and an element of some rows NaN.
void plant_odd_bytes(Side& side, std::int64_t rows, std::int64_t depth, std::int64_t nan_row) {
  const auto set = [&](std::int64_t row, std::int64_t at, std::uint8_t byte) {
    side.bytes[static_cast<std::size_t>(row * side.line + at)] = byte;
    side.value[static_cast<std::size_t>(row * depth + at)] = double{e4m3_to_float(byte)};
  };
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t at = r % 5; at < depth; at += 7) set(r, at, 0x80);
    if (r % nan_row == 3) set(r, (11 * r + 1) % depth, r % 2 == 0 ? 0x7F : 0xFF);
  }
}

void add_side(backends::emulation::GlobalMemory& memory, std::string_view name, const Side& side) {
  gpu::Region region{.name = name};
  region.row = static_cast<std::int64_t>(side.bytes.size());
  memory.add(region, side.bytes.data());
  if (side.scales.empty()) return;
  region.name = "scales";
  region.row = static_cast<std::int64_t>(side.scales.size());
  memory.add(region, side.scales.data());
}

template <class Ops, ProductConfig C>
void check(std::int64_t m, std::int64_t n, std::int64_t k, double tolerance, unsigned seed = 1, bool odd = false) {
  std::mt19937 random(seed);
  const std::int64_t in_memory = C.a.gathered ? m / 2 + 3 : m;
  Side a = drawn_side(C.a, in_memory, k, random), b = drawn_side(C.b, n, k, random);
  if (odd) plant_odd_bytes(a, in_memory, k, 31), plant_odd_bytes(b, n, k, 37);
  std::vector<std::int32_t> index;
  for (std::int64_t r = 0; r < m; ++r)
    index.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(in_memory)));
  std::vector<float> out(static_cast<std::size_t>(m * n), std::numeric_limits<float>::quiet_NaN());
  backends::emulation::GlobalMemory memory;
  add_side(memory, "a", a), add_side(memory, "b", b);
  gpu::Region rows{.name = "index", .element_bytes = 4};
  rows.row = m;
  memory.add(rows, index.data());
  memory.add(gpu::float_workspace("out", gpu::Access::write, m * n), out.data());
  const ProductParams params{a.params, b.params, index.data(), m, n, k, out.data()};
  const auto blocks = static_cast<int>(ceil_div(m, std::int64_t{C.block_m}) * ceil_div(n, std::int64_t{C.block_n}));
  using Kernel = ProductKernel<Ops, C>;
  ASSERT_EQ(sizeof(typename Kernel::Shared), C.shared_bytes());
  ASSERT_EQ(fault_of(host_kernel<Kernel, typename Ops::Machine>(), C.waves * Ops::Machine::kLanes, blocks, seed, memory,
                     &params),
            "");
  for (std::int64_t r = 0; r < m; ++r) {
    const std::int64_t row = C.a.gathered ? index[static_cast<std::size_t>(r)] : r;
    for (std::int64_t c = 0; c < n; ++c) {
      double sum = 0.0, size = 0.0;
      for (std::int64_t d = 0; d < k; ++d) {
        const double term =
            a.value[static_cast<std::size_t>(row * k + d)] * b.value[static_cast<std::size_t>(c * k + d)];
        sum += term, size += std::fabs(term);
      }
      if (std::isnan(sum)) {
        ASSERT_TRUE(std::isnan(out[static_cast<std::size_t>(r * n + c)])) << r << ", " << c;
        continue;
      }
      ASSERT_NEAR(out[static_cast<std::size_t>(r * n + c)], sum, tolerance * size + 1e-30) << r << ", " << c;
    }
  }
}

constexpr double kF32 = 4e-6, kRounded = 8e-3;

/// A block of every machine: 64 x 64.
constexpr ProductConfig small() {
  ProductConfig c;
  c.block_m = c.block_n = 64;
  c.block_k = 32;
  return c;
}

template <class Ops>
struct Products : testing::Test {};
using Machines = testing::Types<Sm80Ops<HostSm80Machine>, CdnaOps<HostCdnaMachine>, RdnaOps<HostRdnaMachine>>;
TYPED_TEST_SUITE(Products, Machines);

TYPED_TEST(Products, OfRows) {
  constexpr ProductConfig kConfig = small();
  check<TypeParam, kConfig>(100, 72, 200, kF32);
  check<TypeParam, kConfig>(1, 8, 8, kF32);
}

TEST(DirectProducts, OfRows) {
  constexpr ProductConfig kConfig = [] {
    ProductConfig c = small();
    c.block_n = 128;
    c.waves = c.waves_n = 2;
    c.right = kRightDirect;
    c.a.gathered = 1;
    return c;
  }();
  for (const std::int64_t k : {32, 64, 96, 160}) check<CdnaOps<HostCdnaMachine>, kConfig>(70, 200, k, kF32);
}

/// Of e2m1 under 16-bit rows.
constexpr ProductConfig direct_fours(std::int32_t element, std::int32_t scale_type, std::int32_t scale_depth) {
  ProductConfig c = small();
  c.block_n = 128, c.block_k = 64;
  c.waves = c.waves_n = 2;
  c.right = kRightDirect;
  c.a.type = c.element = element;
  c.a.gathered = 1;
  c.b.type = kProductE2m1;
  c.b.scale_use = kScaleElements, c.b.scale_type = scale_type, c.b.scale_depth = scale_depth;
  return c;
}

TEST(DirectProducts, OfFours) {
  constexpr ProductConfig kMx = direct_fours(kBf16, kScaleE8m0, 32), kNv = direct_fours(kBf16, kScaleE4m3, 16),
                          kNvF16 = direct_fours(kF16, kScaleE4m3, 16);
  for (const std::int64_t k : {64, 128, 320}) check<CdnaOps<HostCdnaMachine>, kMx>(70, 200, k, kF32);
  check<CdnaOps<HostCdnaMachine>, kNv>(70, 200, 192, kF32);
  check<CdnaOps<HostCdnaMachine>, kNvF16>(66, 100, 128, kF32);
}

TEST(DirectProducts, TablesOfFoursHoldEveryNumber) {
  TablesOfFours<HostCdnaMachine, kBf16, false> powers;
  for (const int exponent : {0, 1, 126, 127, 128, 253, 254, 255}) {
    const auto byte = static_cast<std::uint8_t>(exponent);
    powers.fill(e8m0_to_float(byte));
    const Chunk chunk = powers.widened(0x76543210u), negative = powers.widened(0xFEDCBA98u);
    for (int i = 0; i < 8; ++i) {
      const auto bits = [&](const Chunk& of) { return static_cast<std::uint16_t>(of.word[i / 2] >> (16 * (i % 2))); };
      const float expected = e2m1_to_float(static_cast<std::uint8_t>(i)) * e8m0_to_float(byte);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(bf16_to_float(bits(chunk)))) << i;
        continue;
      }
      EXPECT_EQ(bf16_to_float(bits(chunk)), expected) << exponent << ", " << i;
      EXPECT_EQ(bf16_to_float(bits(negative)), -expected) << exponent << ", " << i;
    }
  }
  TablesOfFours<HostCdnaMachine, kF16, true> scales;
  for (int scale = 0; scale < 256; ++scale) {
    const float factor = e4m3_to_float(static_cast<std::uint8_t>(scale));
    if (std::isnan(factor)) continue;
    scales.fill(factor);
    for (std::uint32_t word : {0x76543210u, 0xFEDCBA98u}) {
      const Chunk chunk = scales.widened(word);
      for (int i = 0; i < 8; ++i) {
        const auto bits = static_cast<std::uint16_t>(chunk.word[i / 2] >> (16 * (i % 2)));
        const float number = e2m1_to_float(static_cast<std::uint8_t>(word >> (4 * i) & 15u));
        EXPECT_EQ(f16_to_float(bits), number * factor) << scale << ", " << i;
      }
    }
  }
}

/// Of fp8 that is multiplied as it is.
constexpr ProductConfig bytes(std::int32_t depth) {
  ProductConfig c = small();
  c.a.type = c.b.type = c.element = kProductE4m3;
  c.block_k = depth;
  return c;
}
constexpr ProductConfig direct_bytes() {
  ProductConfig c = bytes(128);
  c.block_n = 128;
  c.waves = c.waves_n = 2;
  c.right = kRightDirect;
  return c;
}

TEST(ByteProducts, OfRows) {
  constexpr ProductConfig kConfig = bytes(64);
  check<CdnaOps<HostCdnaMachine>, kConfig>(100, 72, 208, kF32);
  check<CdnaOps<HostCdnaMachine>, kConfig>(70, 75, 64, kF32, 2, true);
  constexpr ProductConfig kGathered = [] {
    ProductConfig c = bytes(128);
    c.a.gathered = 1;
    return c;
  }();
  check<CdnaOps<HostCdnaMachine>, kGathered>(40, 64, 272, kF32, 3);
}

TEST(ByteProducts, OfRowsWithSumsScaled) {
  constexpr ProductConfig kConfig = [] {
    ProductConfig c = bytes(128);
    c.a.scale_use = c.b.scale_use = kScaleSums;
    c.b.scale_rows = 128;
    return c;
  }();
  check<CdnaOps<HostCdnaMachine>, kConfig>(70, 160, 272, kF32);
  check<CdnaOps<HostCdnaMachine>, kConfig>(70, 64, 144, kF32, 2, true);
}

TEST(ByteProducts, OfRowsStraightToRegisters) {
  constexpr ProductConfig kConfig = [] {
    ProductConfig c = direct_bytes();
    c.a.gathered = 1;
    return c;
  }();
  for (const std::int64_t k : {128, 256, 384, 640}) check<CdnaOps<HostCdnaMachine>, kConfig>(70, 200, k, kF32);
  check<CdnaOps<HostCdnaMachine>, kConfig>(66, 128, 384, kF32, 2, true);
}

TEST(ByteProducts, OfRowsStraightToRegistersWithSumsScaled) {
  constexpr ProductConfig kConfig = [] {
    ProductConfig c = direct_bytes();
    c.a.scale_use = c.b.scale_use = kScaleSums;
    c.b.scale_rows = 128;
    return c;
  }();
  for (const std::int64_t k : {128, 384}) check<CdnaOps<HostCdnaMachine>, kConfig>(70, 200, k, kF32);
  check<CdnaOps<HostCdnaMachine>, kConfig>(66, 300, 256, kF32, 2, true);
}

/// Of fp8, and of e2m1, with scales that the matrix unit takes.
constexpr ProductConfig scaled(std::int32_t type, std::int32_t depth) {
  ProductConfig c = bytes(depth);
  c.b.type = type;
  c.a.scale_use = c.b.scale_use = kScaleProducts, c.a.scale_type = c.b.scale_type = kScaleE8m0;
  c.a.scale_depth = c.b.scale_depth = 32;
  return c;
}

TEST(ScaledProducts, OfRows) {
  constexpr ProductConfig kBytes = scaled(kProductE4m3, 64), kDeep = scaled(kProductE4m3, 128);
  check<CdnaOps<HostCdnaMachine>, kBytes>(100, 72, 192, kF32);
  check<CdnaOps<HostCdnaMachine>, kDeep>(70, 75, 320, kF32, 2);
  constexpr ProductConfig kFours = scaled(kProductE2m1, 128), kGathered = [] {
    ProductConfig c = scaled(kProductE2m1, 64);
    c.a.gathered = 1;
    return c;
  }();
  check<CdnaOps<HostCdnaMachine>, kFours>(66, 100, 192, kF32);
  check<CdnaOps<HostCdnaMachine>, kGathered>(40, 64, 256, kF32, 3);
}

constexpr ProductConfig direct_scaled(std::int32_t type, std::int32_t depth) {
  ProductConfig c = scaled(type, depth);
  c.block_n = 128;
  c.waves = c.waves_n = 2;
  c.right = kRightDirect;
  return c;
}

TEST(ScaledProducts, OfRowsStraightToRegisters) {
  constexpr ProductConfig kBytes = direct_scaled(kProductE4m3, 128), kFours = direct_scaled(kProductE2m1, 64),
                          kDeep = [] {
                            ProductConfig c = direct_scaled(kProductE2m1, 128);
                            c.a.gathered = 1;
                            c.a.scale_use = kScaleNever;
                            return c;
                          }();
  for (const std::int64_t k : {128, 256, 384}) check<CdnaOps<HostCdnaMachine>, kBytes>(70, 200, k, kF32);
  for (const std::int64_t k : {64, 192, 256}) check<CdnaOps<HostCdnaMachine>, kFours>(66, 130, k, kF32, 2);
  check<CdnaOps<HostCdnaMachine>, kDeep>(70, 200, 384, kF32, 3);
}

TEST(ScaledProducts, OfOneSideAndOfBlocks) {
  constexpr ProductConfig kOneSide = [] {
    ProductConfig c = scaled(kProductE2m1, 128);
    c.a.scale_use = kScaleNever;
    return c;
  }();
  check<CdnaOps<HostCdnaMachine>, kOneSide>(40, 70, 256, kF32);
  constexpr ProductConfig kBlocks = [] {
    ProductConfig c = scaled(kProductE4m3, 128);
    c.a.scale_depth = 128;
    c.b.scale_rows = c.b.scale_depth = 128;
    return c;
  }();
  check<CdnaOps<HostCdnaMachine>, kBlocks>(40, 200, 320, kF32);
  // Scales of rows that are no powers of two, where sums of a step have ended.
  constexpr ProductConfig kBoth = [] {
    ProductConfig c = scaled(kProductE2m1, 128);
    c.a.scale_use = kScaleSums, c.a.scale_type = kScaleF32, c.a.scale_depth = 128;
    return c;
  }();
  check<CdnaOps<HostCdnaMachine>, kBoth>(40, 70, 384, kF32);
}

constexpr ProductConfig streamed(std::int32_t type, std::int32_t rows) {
  ProductConfig c;
  c.right = kRightStreamed;
  c.b.type = type;
  c.block_m = rows, c.block_n = 16;
  c.waves = c.waves_n = 4;
  c.block_k = 2 * 4 * 128 / bits_of_product_type(type);
  return c;
}

TEST(StreamedProducts, OfElementsAsTheyAre) {
  constexpr ProductConfig kBf16 = streamed(kProductBf16, 8);
  check<Sm80Ops<HostSm80Machine>, kBf16>(8, 32, 1000, kF32);
  check<Sm80Ops<HostSm80Machine>, kBf16>(1, 19, 8, kF32);
  constexpr ProductConfig kF16 = [] {
    ProductConfig c = streamed(kProductF16, 16);
    c.a.type = c.element = kProductF16;
    c.a.gathered = 1;
    c.stages = 3;
    return c;
  }();
  check<Sm80Ops<HostSm80Machine>, kF16>(16, 40, 520, kF32);
  check<Sm80Ops<HostSm80Machine>, kF16>(11, 16, 2048, kF32);
}

TEST(StreamedProducts, OfElementsThatAreWidened) {
  constexpr ProductConfig kMxfp4 = [] {
    ProductConfig c = streamed(kProductE2m1, 16);
    c.b.scale_use = kScaleElements, c.b.scale_type = kScaleE8m0, c.b.scale_depth = 32;
    return c;
  }();
  check<Sm80Ops<HostSm80Machine>, kMxfp4>(13, 40, 1056, kF32);
  constexpr ProductConfig kNvfp4 = [] {
    ProductConfig c = streamed(kProductE2m1, 8);
    c.element = c.a.type = kProductF16;
    c.b.scale_use = kScaleElements, c.b.scale_type = kScaleE4m3, c.b.scale_depth = 16;
    return c;
  }();
  check<Sm80Ops<HostSm80Machine>, kNvfp4>(8, 40, 1056, kF32);
  constexpr ProductConfig kMxfp8 = [] {
    ProductConfig c = streamed(kProductE4m3, 8);
    c.b.scale_use = kScaleElements, c.b.scale_type = kScaleE8m0, c.b.scale_depth = 32;
    return c;
  }();
  check<Sm80Ops<HostSm80Machine>, kMxfp8>(3, 16, 544, kF32);
  constexpr ProductConfig kFp8Blocks = [] {
    ProductConfig c = streamed(kProductE4m3, 16);
    c.b.scale_use = kScaleSums, c.b.scale_rows = 128;
    c.block_k = 64;
    return c;
  }();
  check<Sm80Ops<HostSm80Machine>, kFp8Blocks>(16, 272, 528, kF32);
}

TYPED_TEST(Products, OfGatheredRowsInF16ThatStartAnywhere) {
  constexpr ProductConfig kConfig = [] {
    ProductConfig c = small();
    c.a.type = c.b.type = c.element = kF16;
    c.a.gathered = 1;
    c.a.vectors = c.b.vectors = 0;
    c.stages = 3;
    return c;
  }();
  check<TypeParam, kConfig>(77, 35, 45, kF32);
}

TYPED_TEST(Products, OfColumns) {
  constexpr ProductConfig kConfig = [] {
    ProductConfig c = small();
    c.a.transposed = c.b.transposed = 1;
    return c;
  }();
  check<TypeParam, kConfig>(72, 136, 75, kF32);
  constexpr ProductConfig kUnaligned = [] {
    ProductConfig c = small();
    c.b.transposed = 1;
    c.b.vectors = 0;
    return c;
  }();
  check<TypeParam, kUnaligned>(64, 33, 40, kF32);
}

TYPED_TEST(Products, InF32) {
  constexpr ProductConfig kConfig = [] {
    ProductConfig c = small();
    c.element = c.a.type = kProductF32;
    c.b.type = kProductE2m1;
    c.b.scale_use = kScaleElements, c.b.scale_type = kScaleE4m3, c.b.scale_depth = 16;
    return c;
  }();
  check<TypeParam, kConfig>(65, 64, 96, kF32);
  constexpr ProductConfig kTransposed = [] {
    ProductConfig c = small();
    c.element = c.a.type = c.b.type = kProductF32;
    c.b.transposed = c.a.transposed = 1;
    c.a.vectors = 0;
    return c;
  }();
  check<TypeParam, kTransposed>(35, 40, 50, kF32);
}

TYPED_TEST(Products, OfFp8WithSumsScaled) {
  constexpr ProductConfig kConfig = [] {
    ProductConfig c = small();
    c.a.type = c.b.type = kProductE4m3;
    c.a.scale_use = c.b.scale_use = kScaleSums;
    c.b.scale_rows = 128;
    return c;
  }();
  check<TypeParam, kConfig>(70, 160, 272, kF32);
  constexpr ProductConfig kOfColumns = [] {
    ProductConfig c = small();
    c.b.type = kProductE2m1;
    c.a.type = c.element = kF16;
    c.b.scale_use = kScaleSums, c.b.scale_type = kScaleE8m0, c.b.scale_depth = 32;
    return c;
  }();
  check<TypeParam, kOfColumns>(40, 70, 160, kF32);
}

TYPED_TEST(Products, OfMicroscaledElements) {
  constexpr ProductConfig kConfig = [] {
    ProductConfig c = small();
    c.a.type = kProductE4m3;
    c.b.type = kProductE2m1;
    c.a.scale_use = c.b.scale_use = kScaleElements, c.a.scale_type = c.b.scale_type = kScaleE8m0;
    c.a.scale_depth = c.b.scale_depth = 32;
    return c;
  }();
  check<TypeParam, kConfig>(66, 64, 160, kF32);
}

/// What the gradient of rows reads: weights the other way round, scales and all, rounded to the type of the product.
TYPED_TEST(Products, OfScaledColumns) {
  constexpr ProductConfig kConfig = [] {
    ProductConfig c = small();
    c.a.type = kProductF32;
    c.b.type = kProductE2m1;
    c.b.transposed = 1;
    c.b.scale_use = kScaleElements, c.b.scale_type = kScaleE8m0, c.b.scale_rows = 32, c.b.scale_depth = 1;
    return c;
  }();
  check<TypeParam, kConfig>(64, 64, 48, kRounded);
  constexpr ProductConfig kOfRows = [] {
    ProductConfig c = small();
    c.b.type = kProductE4m3;
    c.b.transposed = 1;
    c.b.vectors = 0;
    c.b.scale_use = kScaleElements, c.b.scale_rows = 1, c.b.scale_depth = 128;
    return c;
  }();
  check<TypeParam, kOfRows>(64, 45, 140, kRounded);
}

struct GroupsParams {
  ProductGroups groups;
  std::int64_t rows;
  std::int32_t block_m;
  std::int32_t* out;  // [blocks, 3]; then groups' own rows, [num_groups, 2]
  std::int32_t blocks;
};

template <class Machine, int kType>
struct GroupsKernel {
  using Params = GroupsParams;
  using Shared = NoShared;
  static void run(const Params& p, NoShared&) {
    const int block = Machine::block();
    Groups<Machine, kType> groups(p.groups, p.rows);
    if (block < p.blocks) {
      const GroupRows tile = groups.tile(block, p.block_m);
      const std::int32_t found[] = {tile.group, tile.rows, static_cast<std::int32_t>(tile.first)};
      if (Machine::lane() < 3) Machine::store_global(p.out + 3 * block + Machine::lane(), found[Machine::lane()]);
    } else {
      const GroupRows all = groups.group(block - p.blocks);
      const std::int32_t found[] = {all.rows, static_cast<std::int32_t>(all.first)};
      std::int32_t* const out = p.out + 3 * p.blocks + 2 * (block - p.blocks);
      if (Machine::lane() < 2) Machine::store_global(out + Machine::lane(), found[Machine::lane()]);
    }
  }
};

/// Every row is in one tile, whose group is what the rule says of it.
template <class Machine, int kType>
void check_groups(std::int64_t rows, const std::vector<std::int64_t>& numbers) {
  const auto groups = static_cast<std::int32_t>(numbers.size()) - (kType == kGroupsOffsets ? 1 : 0);
  std::vector<std::int64_t> begin, end;
  std::int64_t at = kType == kGroupsOffsets ? std::clamp<std::int64_t>(numbers[0], 0, rows) : 0;
  const std::int64_t first = at;
  for (std::int32_t e = 0; e < groups; ++e) {
    begin.push_back(at);
    const std::int64_t number = numbers[static_cast<std::size_t>(e + (kType == kGroupsOffsets ? 1 : 0))];
    at = kType == kGroupsOffsets ? std::clamp(number, at, rows) : at + std::clamp<std::int64_t>(number, 0, rows - at);
    end.push_back(at);
  }
  constexpr std::int32_t kBlock = 16;
  const auto blocks = static_cast<std::int32_t>(most_group_tiles(rows, groups, kBlock, true));
  std::vector<std::int32_t> out(static_cast<std::size_t>(3 * blocks + 2 * groups), -7);
  backends::emulation::GlobalMemory memory;
  gpu::Region region{.name = "numbers", .element_bytes = 8};
  region.row = static_cast<std::int64_t>(numbers.size());
  memory.add(region, numbers.data());
  memory.add(
      {.name = "out", .access = gpu::Access::write, .element_bytes = 4, .row = static_cast<std::int64_t>(out.size())},
      out.data());
  const GroupsParams params{{numbers.data(), 1, groups, 8, kType, 0}, rows, kBlock, out.data(), blocks};
  ASSERT_EQ(fault_of(host_kernel<GroupsKernel<Machine, kType>, Machine>(), Machine::kLanes, blocks + groups, 3, memory,
                     &params),
            "");
  std::vector<std::int32_t> owner(static_cast<std::size_t>(rows), -9);
  for (std::int32_t b = 0; b < blocks; ++b) {
    const std::int32_t* tile = out.data() + 3 * b;
    for (std::int32_t r = tile[2]; r < tile[2] + tile[1]; ++r) {
      ASSERT_EQ(owner.at(static_cast<std::size_t>(r)), -9) << "row " << r << " is in two tiles";
      owner[static_cast<std::size_t>(r)] = tile[0];
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    std::int32_t expected = -1;
    for (std::int32_t e = 0; e < groups; ++e)
      if (r >= begin[static_cast<std::size_t>(e)] && r < end[static_cast<std::size_t>(e)]) expected = e;
    ASSERT_EQ(owner[static_cast<std::size_t>(r)], expected) << "row " << r << ", of which groups begin at " << first;
  }
  for (std::int32_t e = 0; e < groups; ++e) {
    const std::int32_t* own = out.data() + 3 * blocks + 2 * e;
    ASSERT_EQ(own[0], end[static_cast<std::size_t>(e)] - begin[static_cast<std::size_t>(e)]) << e;
    ASSERT_EQ(own[1], begin[static_cast<std::size_t>(e)]) << e;
  }
}

template <class Machine>
struct GroupsOf : testing::Test {};
using GroupMachines = testing::Types<HostSm80Machine, HostCdnaMachine>;
TYPED_TEST_SUITE(GroupsOf, GroupMachines);

TYPED_TEST(GroupsOf, AnySizes) {
  check_groups<TypeParam, kGroupsOffsets>(100, {0, 16, 16, 33, 100});
  check_groups<TypeParam, kGroupsOffsets>(100, {5, 20, 60});
  check_groups<TypeParam, kGroupsCounts>(50, {1, 0, 0, 17, 3, 20});
  check_groups<TypeParam, kGroupsOffsets>(0, {0, 0});
  check_groups<TypeParam, kGroupsOffsets>(40, {0});
}

TYPED_TEST(GroupsOf, WrongNumbers) {
  constexpr std::int64_t kFar = std::int64_t{1} << 62;
  check_groups<TypeParam, kGroupsOffsets>(100, {-5, 40, 20, kFar, 7});
  check_groups<TypeParam, kGroupsOffsets>(100, {kFar, 0, 3});
  check_groups<TypeParam, kGroupsCounts>(50, {-3, kFar, 10});
  check_groups<TypeParam, kGroupsCounts>(50, {20, -kFar, 20, 20, 20});
}

TYPED_TEST(GroupsOf, MoreGroupsThanLanes) {
  std::mt19937 random(5);
  std::vector<std::int64_t> offsets{0}, counts;
  for (int e = 0; e < 150; ++e) {
    counts.push_back(static_cast<std::int64_t>(random() % 5 == 0 ? random() % 40 : 0));
    offsets.push_back(offsets.back() + counts.back());
  }
  check_groups<TypeParam, kGroupsOffsets>(offsets.back() + 21, offsets);
  check_groups<TypeParam, kGroupsCounts>(offsets.back() + 21, counts);
  check_groups<TypeParam, kGroupsCounts>(offsets.back() / 2, counts);
}

}  // namespace
}  // namespace tilewise::test
