// What calls of quantize and dequantize describe to, every wrong tensor by name, results of stacked tensors, and what
// linear layers make of them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "../../support/expect_error.hpp"
#include "formats/element.hpp"
#include "operations/quantize/quantize.hpp"
#include "tilewise/linear.hpp"
#include "tilewise/quantize.hpp"

namespace tilewise {
namespace {

using test::expect_error, test::expect_invalid;

/// A call and the one back on [rows, columns], or of so many experts, valid as it stands.
class SmallQuantize {
 public:
  explicit SmallQuantize(std::string_view format, std::int64_t experts = 0, std::int64_t rows = 6,
                         std::int64_t columns = 40, DType dtype = DType::f32) {
    const auto of_experts = [&](std::vector<std::int64_t> shape, DType element) {
      if (experts > 0) shape.insert(shape.begin(), experts);
      return tensor(shape, element);
    };
    to.format = from.format = parse_block_format(format);
    const BlockFormat& f = to.format;
    to.x = of_experts({rows, columns}, dtype);
    to.elements = of_experts({rows, columns}, f.element);
    to.scales = of_experts({blocks(rows, f.block_rows), blocks(columns, f.block_columns)}, f.scale);
    if (f.global) to.global_scale = of_experts({}, DType::f32);
    from.elements = to.elements, from.scales = to.scales, from.global_scale = to.global_scale;
    from.out = of_experts({rows, columns}, dtype);
    for (std::int64_t i = 0; i < to.x.numel(); ++i)
      formats::store_element(dtype, to.x.data, i, std::sin(static_cast<double>(i)) * std::exp2(i % 17));
  }
  SmallQuantize(const SmallQuantize&) = delete;
  SmallQuantize& operator=(const SmallQuantize&) = delete;

  /// Full of zeros; packed rows begin on bytes.
  TensorView tensor(const std::vector<std::int64_t>& shape, DType dtype) {
    TensorView view;
    view.dtype = dtype;
    view.rank = static_cast<int>(shape.size());
    std::int64_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      view.shape[axis] = shape[axis];
      view.strides[axis] = stride;
      stride *= shape[axis];
      if (dtype == DType::fp4_e2m1) stride += stride % 2;
    }
    memory_.emplace_back(static_cast<std::size_t>(stride) + 2);  // doubles: aligned to 16 by the allocator
    view.data = memory_.back().data();
    return view;
  }

  QuantizeArguments to;
  DequantizeArguments from;

 private:
  static std::int64_t blocks(std::int64_t size, std::int64_t block) {
    return block == BlockFormat::kAll ? 1 : (size + block - 1) / block;
  }
  std::deque<std::vector<double>> memory_;
};

TEST(QuantizeCall, DescribesToItsProblem) {
  SmallQuantize call("mxfp4");
  EXPECT_EQ(to_string(describe(call.to)), "quantize format=mxfp4 rows=6 columns=40");
  EXPECT_EQ(to_string(describe(call.from)), "dequantize format=mxfp4 rows=6 columns=40");
  SmallQuantize stacked("nvfp4", 3, 5, 7, DType::bf16);
  EXPECT_EQ(to_string(describe(stacked.to)),
            "quantize format=nvfp4 dtype=bf16 stacked=1 num_experts=3 rows=5 columns=7");
  stacked.from.dtype = DType::bf16;
  EXPECT_EQ(to_string(describe(stacked.from)),
            "dequantize format=nvfp4 dtype=bf16 stacked=1 num_experts=3 rows=5 columns=7");
  SmallQuantize blocks("fp8_128x128");
  blocks.to.power_of_two = true;
  EXPECT_EQ(to_string(describe(blocks.to)), "quantize format=fp8_128x128 power_of_two=1 rows=6 columns=40");
}

TEST(QuantizeCall, BadTensors) {
  const auto refused = [](const std::string& sentence, auto&& change) {
    SmallQuantize call("mxfp4");
    change(call, call.to);
    expect_invalid(sentence, [&] { quantize(call.to); });
  };
  refused(
      "format: must be fp8_tensor, fp8_row, fp8_1x128, fp8_128x128, the last two with _e8m0, mxfp8, mxfp4 or nvfp4 "
      "(got unknown)",
      [](auto&, auto& q) { q.format.block_columns = 64; });
  refused("x: must be given", [](auto&, auto& q) { q.x = {}; });
  refused("x: rank must be 2, [rows, columns] (got 1, shape [40])",
          [](auto& call, auto& q) { q.x = call.tensor({40}, DType::f32); });
  refused("x: rank must be 3, [num_experts, rows, columns] (got 4, shape [1, 1, 6, 40])",
          [](auto& call, auto& q) { q.x = call.tensor({1, 1, 6, 40}, DType::f32); });
  refused(
      "x: the last dimension must be contiguous, stride 1 (got stride 6); x.contiguous() in torch or "
      "numpy.ascontiguousarray(x) makes it so",
      [](auto&, auto& q) { q.x.strides = {1, 6}; });
  refused("elements: must be given", [](auto&, auto& q) { q.elements = {}; });
  refused("elements: shape must be [rows, columns] = [6, 40] (got [6, 38])",
          [](auto&, auto& q) { q.elements.shape[1] = 38; });
  refused("elements: shape must be [num_experts, rows, columns] = [2, 3, 40] (got [6, 40])",
          [](auto& call, auto& q) { q.x = call.tensor({2, 3, 40}, DType::f32); });
  refused("elements: elements of an output must not share memory (got shape [6, 40], strides [20, 1])",
          [](auto&, auto& q) { q.elements.strides[0] = 20; });
  refused("scales: shape must be [blocks of rows, blocks of columns] = [6, 2] (got [6, 3])",
          [](auto& call, auto& q) { q.scales = call.tensor({6, 3}, DType::fp8_e8m0); });
  refused("scales: an output must not be broadcast (got stride 0 in dimension 0 of size 6)",
          [](auto&, auto& q) { q.scales.strides[0] = 0; });
  refused("global_scale: excludes format=mxfp4 (got both)",
          [](auto& call, auto& q) { q.global_scale = call.tensor({}, DType::f32); });
  refused("global_scale: must be given with format=nvfp4 (got none)", [](auto& call, auto& q) {
    q.format = parse_block_format("nvfp4"), q.scales = call.tensor({6, 3}, DType::fp8_e4m3);
  });
  refused("power_of_two: must be false with format=mxfp4, which has one rule for its scales (got true)",
          [](auto&, auto& q) { q.power_of_two = true; });
  refused("scales: must not overlap x in memory (got fp8_e8m0[6, 2] that starts 0 bytes from f32[6, 40])",
          [](auto&, auto& q) { q.scales.data = q.x.data; });
}

TEST(QuantizeCall, BadTensorsOfDequantize) {
  const auto refused = [](const std::string& sentence, auto&& change) {
    SmallQuantize call("mxfp8");
    change(call, call.from);
    expect_invalid(sentence, [&] { dequantize(call.from); });
  };
  refused("elements: must be given", [](auto&, auto& d) { d.elements = {}; });
  refused("elements: rank must be 2, [rows, columns] (got 1, shape [40])",
          [](auto& call, auto& d) { d.elements = call.tensor({40}, DType::fp8_e4m3); });
  refused("scales: shape must be [blocks of rows, blocks of columns] = [6, 2] (got [2, 6])",
          [](auto& call, auto& d) { d.scales = call.tensor({2, 6}, DType::fp8_e8m0); });
  refused("out: must be given", [](auto&, auto& d) { d.out = {}; });
  refused("out: shape must be [rows, columns] = [6, 40] (got [6, 32])", [](auto&, auto& d) { d.out.shape[1] = 32; });
}

TEST(QuantizeCall, WrongDtypes) {
  const auto refused = [](const std::string& sentence, auto&& change) {
    SmallQuantize call("mxfp4");
    change(call);
    expect_error(ErrorCode::invalid_type, sentence, [&] {
      quantize(call.to);
      dequantize(call.from);
    });
  };
  refused("x: dtype must be f32, bf16 or f16 (got f64)", [](auto& call) { call.to.x.dtype = DType::f64; });
  refused("elements: dtype must be fp4_e2m1 (got u8)", [](auto& call) { call.to.elements.dtype = DType::u8; });
  refused("scales: dtype must be fp8_e8m0 (got fp8_e4m3)", [](auto& call) { call.to.scales.dtype = DType::fp8_e4m3; });
  refused("elements: dtype must be fp4_e2m1 (got fp8_e4m3)",
          [](auto& call) { call.from.elements.dtype = DType::fp8_e4m3; });
  refused("out: dtype must be f32, bf16 or f16 (got i32)", [](auto& call) { call.from.out.dtype = DType::i32; });
  refused("out: dtype must be dtype, bf16 (got f32)", [](auto& call) { call.from.dtype = DType::bf16; });
}

/// Of rows without columns there is nothing but scales.
TEST(QuantizeCall, EmptyTensors) {
  for (const std::string_view format : {"fp8_tensor", "fp8_row", "nvfp4"}) {
    SmallQuantize call(format, 0, 3, 0);
    quantize(call.to);
    if (call.to.format.global) {
      EXPECT_EQ(*static_cast<float*>(call.to.global_scale.data), 1.0f);
    } else {
      EXPECT_EQ(*static_cast<float*>(call.to.scales.data), 1.0f);
    }
    dequantize(call.from);
  }
}

/// What is quantised here is what a grouped linear layer takes, expert by expert.
TEST(QuantizeCall, FitsLinearLayers) {
  for (const std::string_view format : {"fp8_tensor", "fp8_128x128", "mxfp4", "nvfp4"}) {
    SmallQuantize weights(format, 2, 6, 40);
    quantize(weights.to);
    dequantize(weights.from);
    const auto layer = [&](const TensorView& out) {
      LinearArguments call;
      call.x = weights.tensor({3, 40}, DType::f32);
      for (std::int64_t i = 0; i < 120; ++i) static_cast<float*>(call.x.data)[i] = static_cast<float>(i % 7 - 3);
      call.offsets = weights.tensor({3}, DType::i32);
      const std::int32_t offsets[] = {0, 1, 3};
      std::copy_n(offsets, 3, static_cast<std::int32_t*>(call.offsets.data));
      call.out = out;
      return call;
    };
    LinearArguments quantized = layer(weights.tensor({3, 6}, DType::f32)),
                    wide = layer(weights.tensor({3, 6}, DType::f32));
    quantized.w = weights.to.elements, quantized.w_scale = weights.to.scales;
    quantized.w_global_scale = weights.to.global_scale, quantized.w_format = weights.to.format;
    wide.w = weights.from.out;
    grouped_linear(quantized, {"reference"});
    grouped_linear(wide, {"reference"});
    for (std::int64_t i = 0; i < 18; ++i) {
      const float expected = static_cast<float*>(wide.out.data)[i];
      EXPECT_NEAR(static_cast<float*>(quantized.out.data)[i], expected, 1e-5f * std::abs(expected)) << format;
    }
  }
}

}  // namespace
}  // namespace tilewise
