// What calls of linear layers describe to, every wrong tensor by name, results that are exact, plans that are given and
// those that are remembered.
#include <cmath>

#include "core/plan.hpp"
#include "linear_support.hpp"

namespace tilewise {
namespace {

using test::element, test::expect_error, test::expect_invalid, test::rows_for, test::SmallLinear;

TEST(LinearCall, DescribesToItsProblem) {
  const SmallLinear call;
  EXPECT_EQ(to_string(describe(call.forward)), "linear tokens=6 n=4 k=8 bias=f32");
  EXPECT_EQ(to_string(describe(call.backward)), "linear_backward tokens=6 n=4 k=8 bias=f32 dbias=1");
  SmallLinear grouped(3, DType::bf16);
  grouped.forward.activation = Activation::silu;
  grouped.forward.out = grouped.memory.tensor({6, 4}, DType::f32);
  grouped.forward.w.strides = {32, 1, 4};
  grouped.backward.dw.strides = {32, 1, 4};
  grouped.backward.dx = {};
  EXPECT_EQ(to_string(describe(grouped.forward)),
            "linear dtype=bf16 out_dtype=f32 tokens=6 n=4 k=8 groups=offsets_i32 num_experts=3 bias=bf16 "
            "activation=silu w_transposed=1");
  EXPECT_EQ(to_string(describe(grouped.backward)),
            "linear_backward dtype=bf16 tokens=6 n=4 k=8 groups=offsets_i32 num_experts=3 bias=bf16 dx=0 dbias=1 "
            "dw_transposed=1");
}

TEST(LinearCall, DescribesFormatsAndTheirScales) {
  SmallLinear call(3, DType::bf16);
  call.forward.w_format = parse_block_format("nvfp4");
  call.forward.w = call.memory.tensor({3, 4, 8}, DType::fp4_e2m1);
  call.forward.w_scale = call.memory.tensor({3, 4, 1}, DType::fp8_e4m3);
  call.forward.w_global_scale = call.memory.tensor({3}, DType::f32);
  EXPECT_EQ(to_string(describe(call.forward)),
            "linear w_format=nvfp4 dtype=bf16 tokens=6 n=4 k=8 groups=offsets_i32 num_experts=3 bias=bf16");
  call.forward.w_global_scale = {};
  expect_invalid("w_global_scale: must be given with w_format=nvfp4 (got none)", [&] { (void)describe(call.forward); });

  SmallLinear rows;
  rows.forward.x_format = parse_block_format("fp8_row"), rows.forward.w_format = parse_block_format("fp8_row");
  rows.forward.x = rows.memory.tensor({6, 8}, DType::fp8_e4m3);
  rows.forward.w = rows.memory.tensor({4, 8}, DType::fp8_e4m3);
  rows.forward.x_scale = rows.memory.tensor({6, 1}, DType::f32);
  rows.forward.w_scale = rows.memory.tensor({4, 1}, DType::f32);
  EXPECT_EQ(to_string(describe(rows.forward)),
            "linear w_format=fp8_row x_format=fp8_row out_dtype=f32 tokens=6 n=4 k=8 bias=f32");
  rows.forward.x_scale = rows.memory.tensor({1, 6}, DType::f32);
  expect_invalid("x_scale: shape must be [blocks of tokens, blocks of k] = [6, 1] (got [1, 6])",
                 [&] { (void)describe(rows.forward); });
  rows.forward.x_format.block_columns = 77;
  expect_invalid("x_format: must be none, fp8_tensor, fp8_row, fp8_1x128, fp8_1x128_e8m0 or mxfp8 (got unknown)",
                 [&] { (void)describe(rows.forward); });
}

TEST(LinearCall, BadTensors) {
  const auto refused = [](const std::string& sentence, auto&& change) {
    SmallLinear call(3);
    change(call, call.forward);
    expect_invalid(sentence, [&] { (void)describe(call.forward); });
  };
  refused("x: must be given", [](auto&, auto& f) { f.x = {}; });
  refused("x: rank must be 2, [tokens, k] (got 1, shape [8])",
          [](auto& call, auto& f) { f.x = call.memory.tensor({8}, DType::f32); });
  refused("w: must be given", [](auto&, auto& f) { f.w = {}; });
  refused("w: shape must be [num_experts, n, k] = [3, 4, 8] (got [3, 4, 7])",
          [](auto& call, auto& f) { f.w = call.memory.tensor({3, 4, 7}, DType::f32); });
  refused("w: rank must be 3, [num_experts, n, k] (got 2, shape [4, 8])",
          [](auto& call, auto& f) { f.w = call.memory.tensor({4, 8}, DType::f32); });
  refused("w: rank must be 2, [n, k] (got 3, shape [3, 4, 8])", [](auto&, auto& f) { f.offsets = {}; });
  refused("bias: shape must be [num_experts, n] = [3, 4] (got [4])",
          [](auto& call, auto& f) { f.bias = call.memory.tensor({4}, DType::f32); });
  refused("offsets: shape must be [num_experts + 1] = [4] (got [3])",
          [](auto& call, auto& f) { f.offsets = call.memory.tensor({3}, DType::i32); });
  refused("counts: excludes offsets (got both)",
          [](auto& call, auto& f) { f.counts = call.memory.tensor({3}, DType::i32); });
  refused("x_scale: excludes x_format=none (got both)",
          [](auto& call, auto& f) { f.x_scale = call.memory.tensor({1, 1}, DType::f32); });
  refused("out: shape must be [tokens, n] = [6, 4] (got [4, 6])",
          [](auto& call, auto& f) { f.out = call.memory.tensor({4, 6}, DType::f32); });
  refused("out: the last dimension must be contiguous, stride 1 (got stride 2)", [](auto& call, auto& f) {
    f.out = call.memory.tensor({12, 4}, DType::f32), f.out.shape[0] = 6, f.out.strides = {8, 2};
  });
  refused("out: an output must not be broadcast (got stride 0 in dimension 0 of size 6)",
          [](auto&, auto& f) { f.out.strides[0] = 0; });
  refused("out: must not overlap x in memory (got f32[6, 4] that starts 0 bytes from f32[6, 8])",
          [](auto&, auto& f) { f.out.data = f.x.data; });
  refused("out: must not overlap offsets in memory (got f32[6, 4] that starts 0 bytes from i32[4])",
          [](auto&, auto& f) { f.out.data = f.offsets.data; });
}

TEST(LinearCall, WrongDtypes) {
  const auto refused = [](const std::string& sentence, auto&& change) {
    SmallLinear call(3, DType::bf16);
    change(call);
    expect_error(ErrorCode::invalid_type, sentence, [&] { (void)describe(call.forward); });
  };
  refused("x: dtype must be f32, bf16, f16, f64 or fp8_e4m3 (got i64)",
          [](auto& call) { call.forward.x = call.memory.tensor({6, 8}, DType::i64); });
  refused("w: dtype must be bf16 (got f32)",
          [](auto& call) { call.forward.w = call.memory.tensor({3, 4, 8}, DType::f32); });
  refused("offsets: dtype must be i32 or i64 (got f32)",
          [](auto& call) { call.forward.offsets = call.memory.tensor({4}, DType::f32); });
  refused("bias: dtype must be f32, bf16, f16 or f64 (got i32)",
          [](auto& call) { call.forward.bias = call.memory.tensor({3, 4}, DType::i32); });
}

TEST(LinearCall, BadTensorsOfTheBackwardPass) {
  const auto refused = [](const std::string& sentence, auto&& change) {
    SmallLinear call;
    change(call, call.backward);
    expect_invalid(sentence, [&] { linear_backward(call.backward); });
  };
  refused("dout: must be given", [](auto&, auto& b) { b.dout = {}; });
  refused("dbias: requires bias (got none)", [](auto&, auto& b) { b.bias = {}; });
  refused("dx: shape must be [tokens, k] = [6, 8] (got [6, 4])",
          [](auto& call, auto& b) { b.dx = call.memory.tensor({6, 4}, DType::f32); });
  refused("dx: at least one of dx, dw and dbias must be given (got none)",
          [](auto&, auto& b) { b.dx = b.dw = b.dbias = {}; });
  refused("dw: one of the last two dimensions must be contiguous, stride 1 (got strides 16 and 2)",
          [](auto& call, auto& b) {
            b.dw = call.memory.tensor({8, 8}, DType::f32), b.dw.shape[0] = 4, b.dw.strides = {16, 2};
          });
  refused("dx: must not overlap dw in memory (got f32[6, 8] that starts 0 bytes from f32[4, 8])",
          [](auto&, auto& b) { b.dw.data = b.dx.data; });
}

TEST(LinearCall, PublicFunctionsTakeTheirOwnGroups) {
  SmallLinear one, grouped(3);
  linear(one.forward);
  grouped_linear(grouped.forward);
  expect_invalid("offsets: belongs to grouped_linear (got it in linear)", [&] { linear(grouped.forward); });
  expect_invalid("offsets: must be given, or counts (got neither)", [&] { grouped_linear(one.forward); });
}

/// Whole numbers, whose sums are exact in every dtype, on every implementation that takes them.
TEST(LinearCall, ComputesWhatItSays) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    SmallLinear call(0, dtype);
    for (const std::string& name : rows_for(describe(call.forward))) {
      linear(call.forward, {name});
      for (std::int64_t t = 0; t < 6; ++t) {
        for (std::int64_t n = 0; n < 4; ++n) {
          double sum = element(call.forward.bias, n);
          for (std::int64_t k = 0; k < 8; ++k)
            sum += element(call.forward.x, t * 8 + k) * element(call.forward.w, n * 8 + k);
          EXPECT_EQ(element(call.forward.out, t * 4 + n), sum) << name << " " << to_string(dtype);
        }
      }
    }
  }
}

TEST(LinearCall, ComputesItsGradients) {
  SmallLinear call;
  for (const std::string& name : rows_for(describe(call.backward))) {
    const LinearBackwardArguments& b = call.backward;
    linear_backward(b, {name});
    for (std::int64_t k = 0; k < 8; ++k) {
      for (std::int64_t t = 0; t < 6; ++t) {
        double sum = 0;
        for (std::int64_t n = 0; n < 4; ++n) sum += element(b.dout, t * 4 + n) * element(b.w, n * 8 + k);
        EXPECT_EQ(element(b.dx, t * 8 + k), sum) << name;
      }
      for (std::int64_t n = 0; n < 4; ++n) {
        double sum = 0, bias = 0;
        for (std::int64_t t = 0; t < 6; ++t) {
          sum += element(b.dout, t * 4 + n) * element(b.x, t * 8 + k);
          bias += element(b.dout, t * 4 + n);
        }
        EXPECT_EQ(element(b.dw, n * 8 + k), sum) << name;
        EXPECT_EQ(element(b.dbias, n), bias) << name;
      }
    }
  }
}

/// Rows or weights quantised by quantize() give what their dequantised numbers give.
TEST(LinearCall, QuantisedTensorsAreTheirDequantisedNumbers) {
  for (const std::string format : {"fp8_tensor", "fp8_row", "fp8_128x128_e8m0", "mxfp8", "mxfp4", "nvfp4"}) {
    test::Memory memory;
    const BlockFormat block = parse_block_format(format);
    const TensorView numbers = memory.tensor({5, 40}, DType::f32), widened = memory.tensor({5, 40}, DType::f32);
    for (std::int64_t i = 0; i < 200; ++i) static_cast<float*>(numbers.data)[i] = std::sin(static_cast<float>(i));
    const auto blocks = formats::scales_shape(block, numbers.shape, 2);
    formats::Quantized quantized{memory.tensor({5, 40}, block.element),
                                 memory.tensor({blocks[0], blocks[1]}, block.scale),
                                 block.global ? memory.tensor({1}, DType::f32) : TensorView{}};
    formats::quantize(numbers, block, quantized);
    formats::dequantize(quantized, block, widened);
    LinearArguments call;
    call.x = memory.tensor({2, 40}, DType::f32);
    test::fill(call.x, 1);
    call.w = quantized.elements, call.w_scale = quantized.scales, call.w_global_scale = quantized.global;
    if (block.global) call.w_global_scale.rank = 0;
    call.out = memory.tensor({2, 5}, DType::f32);
    call.w_format = block;
    for (const std::string& name : rows_for(describe(call))) {
      linear(call, {name});
      for (std::int64_t t = 0; t < 2; ++t) {
        for (std::int64_t n = 0; n < 5; ++n) {
          double sum = 0;
          for (std::int64_t k = 0; k < 40; ++k) sum += element(call.x, t * 40 + k) * element(widened, n * 40 + k);
          EXPECT_NEAR(element(call.out, t * 5 + n), sum, 1e-5) << format << " " << name;
        }
      }
    }
  }
}

TEST(LinearCall, RunsPlans) {
  SmallLinear call, other(2);
  const Plan forward = plan(describe(call.forward)), backward = plan(describe(call.backward));
  run(forward, call.forward);
  run(backward, call.backward);
  expect_invalid("plan: must be for the tensors' problem, " + to_string(describe(other.forward)) + " (got a plan for " +
                     to_string(describe(call.forward)) + ")",
                 [&] { run(forward, other.forward); });
}

/// A remembered plan serves exactly the calls that describe to its problem.
TEST(LinearCall, WhatIsRememberedKnowsEveryTensorAndOption) {
  using Call = operations::Linear::Call;
  const SmallLinear call(3);
  operations::Linear::LastCall last;
  ASSERT_TRUE(last.remember(Call(call.forward)));
  EXPECT_TRUE(last.is_like(Call(call.forward)));
  const auto expect_other = [&](auto&& change) {
    LinearArguments changed = call.forward;
    change(changed);
    EXPECT_FALSE(last.is_like(Call(changed)));
  };
  expect_other([](auto& f) { f.activation = Activation::relu; });
  expect_other([](auto& f) { f.batch_invariant = true; });
  expect_other([](auto& f) { f.w_format = parse_block_format("mxfp8"); });
  expect_other([](auto& f) { f.x_format = parse_block_format("mxfp8"); });
  expect_other([](auto& f) { f.bias = {}; });
  expect_other([](auto& f) { f.counts = f.offsets, f.offsets = {}; });
  expect_other([](auto& f) { f.w.strides = {32, 1, 4}; });
  expect_other([](auto& f) { f.out.dtype = DType::bf16; });
}

}  // namespace
}  // namespace tilewise
