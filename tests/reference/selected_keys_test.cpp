// key_indices: what says the same as a mask gives the same, duplicates weigh twice, and gradients are those of
// differences.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "../support/dense_call.hpp"
#include "../support/expect_error.hpp"
#include "tilewise/plan.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::test {
namespace {

constexpr Sizes kSizes{.batch = 2, .seqlen_q = 5, .seqlen_k = 9, .heads_q = 4, .heads_k = 2, .dim = 6, .dim_v = 5};

DenseCall call_of(DType dtype) {
  Sizes sizes = kSizes;
  sizes.dtype = dtype;
  return DenseCall(sizes);
}

/// Of each key head the first `count` keys after the query's number, each once.
Tensor next_keys(std::int64_t heads, std::int64_t count) {
  Tensor indices(DType::i32, {kSizes.batch, kSizes.seqlen_q, heads, count});
  indices.fill_with([&](std::span<const std::int64_t> at) {
    return static_cast<double>((at[0] + at[1] + 2 * at[2] + at[3]) % kSizes.seqlen_k);
  });
  return indices;
}

/// A boolean bias [batch, heads_q, seqlen_q, seqlen_k] that says what next_keys() says.
Tensor mask_of(std::int64_t heads, std::int64_t count) {
  Tensor mask(DType::boolean, {kSizes.batch, kSizes.heads_q, kSizes.seqlen_q, kSizes.seqlen_k});
  mask.fill_with([&](std::span<const std::int64_t> at) {
    const std::int64_t head = heads == 1 ? 0 : at[1] / (kSizes.heads_q / kSizes.heads_k);
    const std::int64_t place = (at[3] - at[0] - at[2] - 2 * head) % kSizes.seqlen_k;
    return (place + kSizes.seqlen_k) % kSizes.seqlen_k < count ? 1.0 : 0.0;
  });
  return mask;
}

void run(DenseCall& call) {
  call.prepare_backward(true);
  call.forward();
  call.backward();
}

TEST(SelectedKeys, SayWhatAMaskSays) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t heads : {1, 2}) {
      DenseCall selected = call_of(dtype), masked = call_of(dtype);
      selected.key_indices = next_keys(heads, 4);
      masked.bias = mask_of(heads, 4);
      selected.options.mask = masked.options.mask = Mask::causal;
      run(selected);
      run(masked);
      EXPECT_LE(largest_difference(selected.out, masked.out), 1e-6);
      EXPECT_LE(largest_difference(selected.dq, masked.dq), 1e-6);
      EXPECT_LE(largest_difference(selected.dk, masked.dk), 1e-6);
      EXPECT_LE(largest_difference(selected.dv, masked.dv), 1e-6);
    }
  }
}

TEST(SelectedKeys, OneThatStandsTwiceWeighsTwice) {
  DenseCall call = call_of(DType::f64);
  call.key_indices = Tensor(DType::i32, {kSizes.batch, kSizes.seqlen_q, 1, 4});
  call.key_indices.fill_with([](std::span<const std::int64_t> at) { return at[3] < 2 ? 3.0 : at[3] < 3 ? 7.0 : -1.0; });
  call.forward();
  DenseCall twice = call_of(DType::f64);  // by a bias of log 2 on the one
  twice.bias = Tensor(DType::f64, {1, 1, 1, kSizes.seqlen_k});
  twice.bias.fill_with([](std::span<const std::int64_t> at) {
    return at[3] == 3 ? std::log(2.0) : at[3] == 7 ? 0.0 : -INFINITY;
  });
  twice.forward();
  EXPECT_LE(largest_difference(call.out, twice.out), 1e-12);
  EXPECT_LE(largest_difference(call.lse, twice.lse), 1e-12);
}

TEST(SelectedKeys, OneOutsideIsHiddenAndAnErrorWhereChecksAreAskedFor) {
  DenseCall call = call_of(DType::f32);
  call.key_indices = Tensor(DType::i32, {kSizes.batch, kSizes.seqlen_q, 1, 2});
  call.key_indices.fill(9.0);
  call.forward();
  for (std::int64_t i = 0; i < call.out.size(); ++i) EXPECT_EQ(call.out.at(i), 0.0);
  for (std::int64_t i = 0; i < call.lse.size(); ++i) EXPECT_EQ(call.lse.at(i), -INFINITY);
  setenv("TILEWISE_CHECK", "1", 1);
  expect_invalid("key_indices: must be -1 (none) or 0 to 8, a key of sequence 0 (got 9 as index 0 of row 0, head 0)",
                 [&] { call.forward(); });
  unsetenv("TILEWISE_CHECK");
}

TEST(SelectedKeys, GradientsAreThoseOfDifferences) {
  DenseCall call = call_of(DType::f64);
  call.key_indices = DenseCall::indices({kSizes.batch, kSizes.seqlen_q, 2, 5}, kSizes.seqlen_k);
  call.options.softcap = 2.0;
  run(call);
  const auto loss = [&] {
    call.forward();
    double sum = 0.0;
    for (std::int64_t i = 0; i < call.out.size(); ++i) sum += call.out.at(i) * call.dout.at(i);
    for (std::int64_t i = 0; i < call.lse.size(); ++i)
      if (std::isfinite(call.lse.at(i))) sum += call.lse.at(i) * call.dlse.at(i);
    return sum;
  };
  constexpr double kStep = 1e-5;
  for (const auto& [input, gradient] : {std::pair{&call.q, &call.dq}, {&call.k, &call.dk}, {&call.v, &call.dv}}) {
    for (std::int64_t i = 0; i < input->size(); i += 3) {
      const double before = input->at(i);
      input->set_at(i, before + kStep);
      const double above = loss();
      input->set_at(i, before - kStep);
      const double below = loss();
      input->set_at(i, before);
      EXPECT_NEAR(gradient->at(i), (above - below) / (2 * kStep), 1e-7) << i;
    }
  }
}

TEST(SelectedKeys, WrongOnesAreRefused) {
  DenseCall call = call_of(DType::f32);
  const auto expect_refused = [&](Tensor indices, const std::string& message) {
    call.key_indices = std::move(indices);
    expect_invalid(message, [&] { call.forward(); });
  };
  expect_refused(
      Tensor(DType::i32, {2, 5, 3, 4}),
      "key_indices: shape must be [batch_size, seqlen_q, 1 or num_heads_k, top_k] = [2, 5, 1, 4] (got [2, 5, 3, 4])");
  expect_refused(
      Tensor(DType::i32, {2, 4, 1, 4}),
      "key_indices: shape must be [batch_size, seqlen_q, 1 or num_heads_k, top_k] = [2, 5, 1, 4] (got [2, 4, 1, 4])");
  expect_refused(
      Tensor(DType::i32, {2, 5, 4}),
      "key_indices: rank must be 4, [batch_size, seqlen_q, 1 or num_heads_k, top_k] (got 3, shape [2, 5, 4])");
  expect_refused(Tensor(DType::i32, {2, 5, 1, 0}), "key_indices: top_k must be >= 1 (got 0)");
  const std::string text = "attention_forward seqlen_q=4 num_heads_q=2 head_dim=8";
  expect_invalid("key_indices_per_head: requires key_indices, top_k >= 1 (got 0)",
                 [&] { (void)plan(parse_problem(text + " key_indices_per_head=1")); });
  expect_invalid("key_indices: top_k must be 0 (none) to 2147483647 (got -1)",
                 [&] { (void)plan(parse_problem(text + " top_k=-1")); });
}

TEST(SelectedKeys, OneKeyHeadHasTheIndicesOfAll) {
  const std::string text = "attention_forward seqlen_q=4 num_heads_q=2 num_heads_k=1 head_dim=8 top_k=3";
  EXPECT_EQ(parse_problem(text + " key_indices_per_head=1"), parse_problem(text));
}

}  // namespace
}  // namespace tilewise::test
