// e8m0, and element types in tensors: sizes, packing, overlaps, DLPack's names.
#include <dlpack/dlpack.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "../support/expect_error.hpp"
#include "core/overlap.hpp"
#include "core/packed.hpp"
#include "core/tensor_checks.hpp"
#include "device/common/float8_e8m0.h"

namespace tilewise {
namespace {

using test::expect_error, test::expect_invalid;

TEST(E8m0, EveryByteIsItsPowerOfTwo) {
  for (int byte = 0; byte < 255; ++byte) {
    const float value = device::e8m0_to_float(static_cast<std::uint8_t>(byte));
    EXPECT_EQ(value, std::ldexp(1.0, byte - 127)) << byte;
    EXPECT_EQ(device::float_to_e8m0(value), byte);
    EXPECT_EQ(device::floor_log2(value), byte - 127);
    EXPECT_EQ(device::e8m0_of_exponent(byte - 127), byte);
  }
  EXPECT_TRUE(std::isnan(device::e8m0_to_float(255)));
}

TEST(E8m0, TakesTheNearestPower) {
  for (int exponent = -126; exponent < 127; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    EXPECT_EQ(device::float_to_e8m0(std::nextafter(1.5f * power, 0.0f)), exponent + 127);
    EXPECT_EQ(device::float_to_e8m0(1.5f * power), exponent + 128);
  }
  EXPECT_EQ(device::float_to_e8m0(0x1.8p-127f), 1);
  EXPECT_EQ(device::float_to_e8m0(0x1.4p-127f), 0);
  EXPECT_EQ(device::float_to_e8m0(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(device::float_to_e8m0(std::numeric_limits<float>::max()), 254);
  EXPECT_EQ(device::float_to_e8m0(0.0f), 0);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {-1.0f, kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(device::float_to_e8m0(value), 255) << value;
}

TEST(E8m0, FloorLog2OfSubnormals) {
  for (int exponent = -149; exponent < -126; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    EXPECT_EQ(device::floor_log2(power), exponent);
    EXPECT_EQ(device::floor_log2(std::nextafter(2.0f * power, 0.0f)), exponent);
  }
  EXPECT_EQ(device::e8m0_of_exponent(-150), 0);
  EXPECT_EQ(device::e8m0_of_exponent(128), 254);
}

TEST(DTypes, SizesInBitsAndBytes) {
  EXPECT_EQ(bits_of(DType::none), 0u);
  EXPECT_EQ(bits_of(DType::f64), 64u);
  EXPECT_EQ(bits_of(DType::boolean), 8u);
  EXPECT_EQ(bits_of(DType::fp4_e2m1), 4u);
  EXPECT_EQ(bits_of(static_cast<DType>(200)), 0u);
  EXPECT_EQ(size_of(DType::i64), 8u);
  for (const DType dtype : {DType::fp8_e4m3, DType::fp8_e5m2, DType::fp8_e8m0}) EXPECT_EQ(size_of(dtype), 1u);
  expect_invalid("dtype: must have elements of whole bytes here (got fp4_e2m1, 4 bits)",
                 [] { (void)size_of(DType::fp4_e2m1); });
}

TEST(DTypes, SurviveDLPack) {
  std::uint8_t bytes[64] = {};
  for (const DType dtype : {DType::fp8_e5m2, DType::fp8_e8m0, DType::fp4_e2m1}) {
    const TensorView view(bytes, dtype, {4, 16});
    DLTensor tensor{};
    to_dlpack(view, &tensor);
    EXPECT_EQ(tensor.dtype.bits, bits_of(dtype));
    const TensorView back = from_dlpack(tensor, "w");
    EXPECT_EQ(back.dtype, dtype);
    EXPECT_EQ(back.shape, view.shape);
    EXPECT_EQ(back.strides, view.strides);
  }
}

/// torch's float4_e2m1fn_x2 counts bytes.
TEST(DTypes, PairsOfDLPackAreElements) {
  std::uint8_t bytes[64] = {};
  std::int64_t shape[] = {3, 8}, strides[] = {10, 1};
  DLTensor tensor{bytes, {kDLCPU, 0}, 2, {kDLFloat4_e2m1fn, 4, 2}, shape, strides, 0};
  const TensorView rows = from_dlpack(tensor, "w");
  EXPECT_EQ(describe(rows), "fp4_e2m1[3, 16]");
  EXPECT_EQ(rows.strides[0], 20);
  EXPECT_EQ(rows.strides[1], 1);
  std::swap(shape[0], shape[1]), std::swap(strides[0], strides[1]);
  const TensorView columns = from_dlpack(tensor, "w");
  EXPECT_EQ(describe(columns), "fp4_e2m1[16, 3]");
  EXPECT_EQ(columns.strides[0], 1);
  strides[0] = 2;
  expect_invalid("w: pairs of fp4_e2m1 must be contiguous along a dimension (got none)",
                 [&] { (void)from_dlpack(tensor, "w"); });
}

TEST(Packed, RowsBeginOnBytes) {
  std::uint8_t bytes[64] = {};
  const auto check = [](const TensorView& view) { core::check_view(view, "w", {}, "w"); };
  check({bytes, DType::fp4_e2m1, {3, 7}, {8, 1}});
  check({bytes, DType::fp4_e2m1, {7, 3}, {1, 8}});
  check({bytes + 1, DType::fp4_e2m1, {3, 1}, {2, 1}});  // any address will do
  expect_invalid(
      "w: strides of fp4_e2m1 must be even but for one of 1, since two elements share a byte (got stride 7 in "
      "dimension 0)",
      [&] { check({bytes, DType::fp4_e2m1, {3, 7}, {7, 1}}); });
  expect_invalid(
      "w: strides of fp4_e2m1 must be even but for one of 1, since two elements share a byte (got stride 1 in "
      "dimension 1 beside dimension 0)",
      [&] { check({bytes, DType::fp4_e2m1, {3, 7}, {1, 1}}); });
}

TEST(Packed, ElementsOfOneByteOverlap) {
  std::uint8_t bytes[64] = {};
  const TensorView rows(bytes, DType::fp4_e2m1, {4, 7}, {16, 1});
  EXPECT_FALSE(core::overlaps_itself(rows));
  EXPECT_TRUE(core::overlaps_itself({bytes, DType::fp4_e2m1, {4, 7}, {6, 1}}));  // the last of 7 is in the next row
  EXPECT_FALSE(core::overlaps_itself({bytes, DType::fp4_e2m1, {4, 6}, {6, 1}}));
  EXPECT_FALSE(core::share_memory(rows, {bytes + 4, DType::u8, {4, 4}, {8, 1}}));
  EXPECT_TRUE(core::share_memory(rows, {bytes + 3, DType::u8, {4, 1}, {8, 1}}));
  EXPECT_TRUE(core::share_memory({bytes, DType::f32, {1}}, rows));
}

TEST(Packed, RowsOnSixteenBytes) {
  alignas(16) std::uint8_t bytes[64] = {};
  EXPECT_TRUE(core::rows_start_on_16_bytes({bytes, DType::fp4_e2m1, {2, 32}, {32, 1}}));
  EXPECT_FALSE(core::rows_start_on_16_bytes({bytes, DType::fp4_e2m1, {2, 16}, {16, 1}}));
}

}  // namespace
}  // namespace tilewise
