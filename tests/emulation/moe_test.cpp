// Expert layers as Hopper takes them, under emulation against the reference: each way through its kernels, options,
// edges, hostile ids, and what is refused.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "../support/expect_passed.hpp"
#include "core/message.hpp"
#include "tilewise/moe.hpp"

namespace tilewise::test {
namespace {

using core::concat;

constexpr std::string_view kName = "emulation.sm90";

/// Checks two problems that differ in strides and ids, of which one has special values, where the schedule is `way`.
void check(std::string_view way, const std::string& text, std::string_view pass = "moe") {
  const AnyProblem problem = parse_problem(concat(pass, " ", text));
  const std::string schedule = plan(problem, {std::string(kName)}).schedule();
  ASSERT_NE(schedule.find(way), std::string::npos) << "another way: " << schedule << "\n  " << text;
  for (const bool special : {false, true}) expect_passed(problem, kName, aligned_seed(special));
}

constexpr std::string_view kFew = "weights streamed, 128 rows by up to 8",
                           kMore = "weights streamed, 128 rows by up to 16",
                           kSorted = "pairs sorted; weights streamed, 128 rows by up to 64",
                           kMany = "pairs sorted; rows gathered; tiles of 128",
                           kQuantised = "weights streamed, 128 rows by up to 8",
                           kMxfp4 = "weights streamed, 192 rows by up to 8",
                           kSortedQuantised = "pairs sorted; weights streamed, 128 rows by up to 32",
                           kScaled = "pairs sorted; rows gathered; two products of tiles",
                           kSortedMxfp4 = "pairs sorted; weights streamed, 192 rows by up to 32";

TEST(EmulatedMoe, EveryWay) {
  check(kFew, "dtype=bf16 tokens=1 hidden=136 intermediate=72 num_experts=8 top_k=2");
  check(kFew, "dtype=f16 tokens=5 hidden=72 intermediate=40 num_experts=200 top_k=6 ids_dtype=i64");
  check(kMore, "dtype=bf16 tokens=13 hidden=72 intermediate=136 num_experts=5 top_k=4 weights_dtype=bf16");
  check(kSorted, "dtype=bf16 tokens=60 hidden=72 intermediate=40 num_experts=7 top_k=3");
  check(kSorted, "dtype=f16 tokens=300 hidden=40 intermediate=24 num_experts=140 top_k=2 weights_dtype=f16");
  check(kMany, "dtype=bf16 tokens=150 hidden=136 intermediate=72 num_experts=2 top_k=1");
  check(kMany, "dtype=f16 tokens=290 hidden=40 intermediate=24 num_experts=3 top_k=2 ids_dtype=i64");
}

TEST(EmulatedMoe, EveryOption) {
  const std::string few = " dtype=bf16 tokens=6 hidden=72 intermediate=40 num_experts=3 top_k=3",
                    many = " dtype=bf16 tokens=60 hidden=72 intermediate=40 num_experts=1 top_k=1";
  for (const char* options :
       {"gate=interleaved activation=swiglu_oai clamp=before gate_up_bias=bf16 down_bias=f32 first_expert=8",
        "gate=none activation=relu_squared gate_up_bias=f16 clamp=after",
        "down_bias=f32 activation=gelu weight_on_input=1", "gate=none activation=identity weight_on_input=1",
        "gate=interleaved activation=gelu_tanh clamp=after"}) {
    check(kFew, concat(options, few));
    check(kMany, concat(options, many));
  }
}

TEST(EmulatedMoe, EveryFormatOfWeightsByNight) {
  for (const std::string format : {"mxfp4", "nvfp4", "fp8_128x128"}) {
    const std::string few = concat("tokens=5 hidden=288 intermediate=160 num_experts=5 top_k=3 w_format=", format),
                      more = concat("tokens=13 hidden=96 intermediate=320 num_experts=5 top_k=4 w_format=", format),
                      sorted = concat("tokens=40 hidden=160 intermediate=96 num_experts=7 top_k=3 w_format=", format);
    const bool three = format == "mxfp4";  // warpgroups that widen
    check(three ? kMxfp4 : kQuantised,
          concat(few, " dtype=f16 gate=interleaved activation=swiglu_oai clamp=before gate_up_bias=bf16"));
    check(three ? kSortedMxfp4 : kMore, concat(more, " dtype=bf16 ids_dtype=i64 first_expert=8"));
    check(three ? kSortedMxfp4 : kSortedQuantised,
          concat(sorted, " dtype=bf16 gate=none activation=relu_squared weight_on_input=1"));
  }
}

/// Tiles of 64 rows, whose warpgroups share a row, and of more, edges of both products, and groups of rows in pairs.
TEST(EmulatedMoe, RowsInFp8) {
  const std::string fp8 = "dtype=fp8_e4m3 x_format=fp8_1x128 h_format=fp8_1x128 w_format=fp8_128x128 ";
  check(kScaled, fp8 + "tokens=10 hidden=144 intermediate=64 num_experts=140 top_k=1 first_expert=8");
  check(kScaled, fp8 +
                     "tokens=290 hidden=272 intermediate=192 num_experts=1 top_k=1 ids_dtype=i64 gate=interleaved "
                     "activation=swiglu_oai clamp=before gate_up_bias=bf16 down_bias=f32");
  check(kScaled, fp8 +
                     "tokens=40 hidden=80 intermediate=192 num_experts=2 top_k=2 activation=gelu weight_on_input=1 "
                     "down_bias=f16 weights_dtype=bf16");
  check(kScaled, fp8 + "tokens=330 hidden=144 intermediate=64 num_experts=2 top_k=1");
}

TEST(EmulatedMoe, EveryGradient) {
  const auto check_gradients = [](const std::string& text) { check("; weights 128 x 256", text, "moe_backward"); };
  check_gradients("dtype=bf16 tokens=70 hidden=136 intermediate=72 num_experts=3 top_k=2");
  check_gradients("dtype=f16 tokens=300 hidden=40 intermediate=200 num_experts=5 top_k=2 ids_dtype=i64 first_expert=8");
  check_gradients("dtype=bf16 tokens=9 hidden=72 intermediate=24 num_experts=40 top_k=3 weights_dtype=bf16");
  for (const char* options :
       {"gate=interleaved activation=swiglu_oai clamp=before gate_up_bias=bf16 down_bias=f32",
        "gate=none activation=relu_squared clamp=after",
        "activation=gelu weight_on_input=1 gate_up_bias=f32 weights_dtype=f16",
        "gate=none activation=identity weight_on_input=1 down_bias=bf16", "gate=interleaved activation=gelu_tanh"}) {
    check_gradients(concat(options, " dtype=bf16 tokens=40 hidden=72 intermediate=40 num_experts=3 top_k=2"));
  }
}

TEST(EmulatedMoe, WantedGradients) {
  const std::string sizes = " dtype=bf16 tokens=30 hidden=72 intermediate=40 num_experts=3 top_k=2";
  for (const char* options : {"dx=0", "dtopk_weights=0 ddown=0", "dgate_up=0 dx=0", "dgate_up=0 ddown=0",
                              "gate_up_bias=f32 down_bias=bf16 dgate_up_bias=1 ddown_bias=1 ddown=0"})
    check("rows gathered", options + sizes, "moe_backward");
}

/// Sums that the forward pass leaves, ragged rows and edges of both matrices, and gradients from sums.
void check_saved(const std::string& text) {
  check("sums saved", concat(text, " save_gate_up=1"));
  check("slopes of saved sums", concat(text, " save_gate_up=1"), "moe_backward");
}

TEST(EmulatedMoe, SavedSums) {
  check_saved(
      "dtype=bf16 tokens=70 hidden=72 intermediate=72 num_experts=3 top_k=2 gate=interleaved gate_up_bias=bf16");
  check_saved("dtype=f16 tokens=9 hidden=40 intermediate=600 num_experts=40 top_k=3 first_expert=8 gate=none");
}

TEST(EmulatedMoe, SavedSumsOfEveryOptionByNight) {
  for (const char* options :
       {"tokens=300 ids_dtype=i64", "tokens=70 gate=interleaved activation=swiglu_oai clamp=before down_bias=f32",
        "tokens=40 gate=none activation=relu_squared clamp=after gate_up_bias=f32",
        "tokens=40 activation=gelu weight_on_input=1 gate_up_bias=f32 weights_dtype=f16"})
    check_saved(concat(options, " dtype=bf16 hidden=136 intermediate=40 num_experts=2 top_k=2"));
}

TEST(EmulatedMoe, WithoutTokens) { check("", "dtype=bf16 tokens=0 hidden=72 intermediate=40 num_experts=3 top_k=2"); }

std::string reason_of(const std::string& text) {
  for (const ExplainRow& row : explain(parse_problem("moe " + text)).rows) {
    if (row.implementation == kName)
      return row.accepted ? concat("accepted", row.chosen ? ", chosen" : "") : row.reason;
  }
  return "no such row";
}

TEST(EmulatedMoe, RefusesWithAReasonAndIsNeverChosenUnasked) {
  const std::string sizes = " tokens=20 intermediate=64 top_k=2";
  EXPECT_EQ(reason_of("dtype=bf16 hidden=64 num_experts=8" + sizes), "accepted");
  EXPECT_EQ(reason_of("dtype=f32 hidden=64 num_experts=8" + sizes), "does not support f32");
  EXPECT_EQ(reason_of("dtype=bf16 hidden=60 num_experts=8" + sizes), "hidden must be a multiple of 8 (got 60)");
  EXPECT_EQ(reason_of("dtype=bf16 hidden=64 num_experts=300" + sizes),
            "num_experts must be <= 256 with tokens=20 (got 300)");
  EXPECT_EQ(reason_of("dtype=bf16 hidden=64 num_experts=8 w_format=mxfp8" + sizes), "does not support mxfp8");
  const std::string fp8 = "dtype=fp8_e4m3 x_format=fp8_1x128 w_format=fp8_128x128 hidden=64 num_experts=8" + sizes;
  EXPECT_EQ(reason_of(fp8 + " h_format=fp8_1x128"), "accepted");
  EXPECT_EQ(reason_of(fp8),
            "x_format, h_format and w_format must be fp8_1x128, fp8_1x128 and fp8_128x128 (got fp8_1x128, none and "
            "fp8_128x128)");
  EXPECT_EQ(reason_of(fp8 + " h_format=fp8_1x128 gate=none"),
            "there must be a gate with x_format=fp8_1x128 (got gate=none)");
  EXPECT_EQ(reason_of(fp8 + " h_format=fp8_1x128 out_dtype=f16"), "out must be bf16 with x_format=fp8_1x128 (got f16)");
  EXPECT_EQ(reason_of("dtype=bf16 hidden=64 num_experts=8 w_format=fp8_1x128" + sizes),
            "weights of fp8 must be fp8_128x128 (got fp8_1x128)");
}

}  // namespace
}  // namespace tilewise::test
