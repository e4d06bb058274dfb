// TensorView and DLPack: conversions both ways and what is refused.
#include <dlpack/dlpack.h>

#include <limits>
#include <optional>

#include "core/foreign_dtype.hpp"
#include "support.hpp"

namespace tilewise {
namespace {

using test::expect_error;
using test::expect_invalid;

/// Points into itself, so it stays where it is.
struct Raw {
  Raw() = default;
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;
  std::int64_t shape[3] = {2, 3, 4};
  std::int64_t strides[3] = {24, 4, 1};
  float data[48] = {};
  DLTensor tensor{data, {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, shape, strides, 0};
};

TEST(DLPack, ReadsStridesAndOffset) {
  Raw raw;
  raw.tensor.byte_offset = 8;
  const TensorView view = from_dlpack(raw.tensor, "q");
  EXPECT_EQ(view.data, raw.data + 2);
  EXPECT_EQ(view.dtype, DType::f32);
  EXPECT_EQ(view.rank, 3);
  EXPECT_EQ(view.strides[0], 24);
  EXPECT_EQ(describe(view), "f32[2, 3, 4]");
}

TEST(DLPack, FillsInMissingStrides) {
  Raw raw;
  raw.tensor.strides = nullptr;
  const TensorView view = from_dlpack(raw.tensor, "q");
  EXPECT_EQ(view.strides[0], 12);
  EXPECT_EQ(view.strides[1], 4);
  EXPECT_EQ(view.strides[2], 1);
}

TEST(DLPack, EveryDtypeAndDeviceGoesBothWays) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::boolean, DType::u8, DType::i32,
                            DType::i64, DType::fp8_e4m3}) {
    for (const Device device : {Device{DeviceType::cpu, 0}, Device{DeviceType::cuda, 1}, Device{DeviceType::hip, 2}}) {
      double data[8] = {};
      const TensorView view(data, dtype, {2, 2}, {4, 1}, device);
      DLTensor tensor;
      to_dlpack(view, &tensor);
      const TensorView back = from_dlpack(tensor, "x");
      EXPECT_EQ(back.dtype, dtype);
      EXPECT_EQ(back.device, device);
      EXPECT_EQ(back.data, view.data);
      EXPECT_EQ(back.shape, view.shape);
      EXPECT_EQ(back.strides, view.strides);
    }
  }
}

TEST(DLPack, RefusesWhatItDoesNotKnow) {
  Raw raw;
  const auto expect_dtype = [&raw](DLDataType dtype, const std::string& got) {
    raw.tensor.dtype = dtype;
    expect_error(ErrorCode::invalid_type,
                 "k: dtype must be one of f32, bf16, f16, f64, bool, u8, i32, i64, fp8_e4m3, fp8_e5m2, fp8_e8m0, "
                 "fp4_e2m1 (got " +
                     got + ")",
                 [&] { (void)from_dlpack(raw.tensor, "k"); });
  };
  expect_dtype({kDLComplex, 64, 1}, "complex64");
  expect_dtype({kDLInt, 16, 1}, "i16");
  expect_dtype({kDLUInt, 16, 1}, "u16");
  expect_dtype({kDLFloat8_e4m3fnuz, 8, 1}, "float8_e4m3fnuz");
  expect_dtype({kDLFloat4_e2m1fn, 4, 4}, "float4_e2m1fn in 4 lanes");
  expect_dtype({kDLFloat4_e2m1fn, 8, 1}, "float4_e2m1fn");
  expect_dtype({kDLFloat, 32, 4}, "f32 in 4 lanes");
  expect_dtype({200, 16, 1}, "DLPack code 200, bits 16");
  raw.tensor.dtype = {kDLFloat, 32, 1};
  raw.tensor.device.device_type = kDLMetal;
  expect_error(ErrorCode::invalid_type, "v: device must be cpu, cuda or hip (got DLPack device type 8)",
               [&] { (void)from_dlpack(raw.tensor, "v"); });
}

TEST(DLPack, ForeignTypesKeepTheirNameForWhoChecksThem) {
  Raw raw;
  raw.tensor.dtype = {kDLComplex, 64, 1};
  const TensorView view = core::import_dlpack(raw.tensor, "k");
  EXPECT_EQ(view.dtype, core::foreign_dtype("complex64"));
  EXPECT_EQ(to_string(view.dtype), "complex64");
  EXPECT_EQ(size_of(view.dtype), 0u);
  EXPECT_EQ(core::foreign_dtype("f32"), std::nullopt);
  EXPECT_EQ(core::foreign_name(DType::f32), "");
  EXPECT_EQ(core::foreign_name(static_cast<DType>(255)), "");
  EXPECT_EQ(to_string(static_cast<DType>(255)), "unknown");
  raw.tensor.dtype = {200, 16, 1};
  expect_error(
      ErrorCode::invalid_type,
      "k: dtype must be one of f32, bf16, f16, f64, bool, u8, i32, i64, fp8_e4m3, fp8_e5m2, fp8_e8m0, fp4_e2m1 (got "
      "DLPack code 200, bits 16)",
      [&] { (void)core::import_dlpack(raw.tensor, "k"); });
}

TEST(DLPack, RefusesBrokenShapes) {
  Raw raw;
  raw.tensor.ndim = 7;
  expect_invalid("q: rank must be 0 to 6 (got 7)", [&] { (void)from_dlpack(raw.tensor, "q"); });
  raw.tensor.ndim = -1;
  expect_invalid("q: rank must be 0 to 6 (got -1)", [&] { (void)from_dlpack(raw.tensor, "q"); });
  raw.tensor.ndim = 3;
  raw.shape[1] = -2;
  expect_invalid("q: shape[1] must be >= 0 (got -2)", [&] { (void)from_dlpack(raw.tensor, "q"); });
  raw.tensor.shape = nullptr;
  expect_invalid("q: shape must not be null (rank 3)", [&] { (void)from_dlpack(raw.tensor, "q"); });
  expect_invalid("tensor: must be given (got an undefined view)", [&] { to_dlpack(TensorView{}, &raw.tensor); });
}

TEST(DLPack, OverflowingShapesDoNotWrap) {
  Raw raw;
  raw.tensor.strides = nullptr;
  for (std::int64_t& size : raw.shape) size = std::int64_t{1} << 40;
  const TensorView view = from_dlpack(raw.tensor, "q");
  EXPECT_EQ(view.numel(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(view.strides[0], std::numeric_limits<std::int64_t>::max());
}

TEST(TensorView, Constructors) {
  float data[4] = {};
  EXPECT_FALSE(TensorView{}.defined());
  EXPECT_EQ(TensorView(data, DType::f32, {2, 2}).strides[0], 2);
  EXPECT_EQ(TensorView(data, DType::f32, {}).numel(), 1);
  EXPECT_EQ(TensorView(data, DType::f32, {2, 0, 3}).numel(), 0);
  expect_invalid("tensor: rank must be <= 6 (got 7)", [&] { TensorView(data, DType::f32, {1, 1, 1, 1, 1, 1, 1}); });
  expect_invalid("tensor: strides must have as many entries as shape (got 1 and 2)",
                 [&] { TensorView(data, DType::f32, {2, 2}, {1}); });
}

}  // namespace
}  // namespace tilewise
