// Used parts and packed sequences: a padded or packed call gives each sequence what it gets alone.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "../support/dense_call.hpp"

namespace tilewise::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// Two sequences with unused rows of NaN: used_q {3, 2} of 4, keys [1, 5) and [0, 3) of 6.
struct Padded : testing::Test {
  Padded() {
    call.seqused_q = DenseCall::lengths({3, 2});
    call.seqused_k = DenseCall::lengths({4, 3});
    call.leftpad_k = DenseCall::lengths({1, 0});
    call.options.mask = Mask::causal;
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t i = used_q[b]; i < 4; ++i) poison_row(call.q, b, i);
      for (std::int64_t j = 0; j < 6; ++j)
        if (j < first_k[b] || j >= first_k[b] + used_k[b]) poison_row(call.k, b, j), poison_row(call.v, b, j);
    }
  }
  static void poison_row(Tensor& tensor, std::int64_t b, std::int64_t row) {
    const TensorView view = tensor.view();
    for (std::int64_t h = 0; h < view.shape[2]; ++h)
      for (std::int64_t d = 0; d < view.shape[3]; ++d) tensor.set({b, row, h, d}, kNan);
  }
  /// The used part of sequence b as a call of its own.
  [[nodiscard]] DenseCall alone(std::int64_t b) const {
    DenseCall one({.seqlen_q = used_q[b], .seqlen_k = used_k[b], .heads_q = 2, .heads_k = 1});
    const auto part = [b](const Tensor& from, std::int64_t first) {
      return [&from, b, first](std::span<const std::int64_t> p) { return from.get({b, first + p[1], p[2], p[3]}); };
    };
    one.q.fill_with(part(call.q, 0));
    one.k.fill_with(part(call.k, first_k[b]));
    one.v.fill_with(part(call.v, first_k[b]));
    one.options.mask = Mask::causal;
    return one;
  }

  const std::int64_t used_q[2] = {3, 2}, used_k[2] = {4, 3}, first_k[2] = {1, 0};
  DenseCall call{{.batch = 2, .seqlen_q = 4, .seqlen_k = 6, .heads_q = 2, .heads_k = 1}};
};

TEST_F(Padded, ForwardGivesEachSequenceItsOwnResult) {
  call.forward();
  for (std::int64_t b = 0; b < 2; ++b) {
    DenseCall one = alone(b);
    one.forward();
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t i = 0; i < 4; ++i) {
        const bool used = i < used_q[b];
        EXPECT_EQ(call.lse.get({b, h, i}), used ? one.lse.get({0, h, i}) : -kInf);
        for (std::int64_t d = 0; d < 4; ++d)
          EXPECT_EQ(call.out.get({b, i, h, d}), used ? one.out.get({0, i, h, d}) : 0.0);
      }
    }
  }
}

TEST_F(Padded, BackwardWritesZerosOutsideTheUsedPart) {
  call.prepare_backward();
  call.forward();
  call.backward();
  for (std::int64_t b = 0; b < 2; ++b) {
    DenseCall one = alone(b);
    one.prepare_backward();
    one.dout.fill_with([&](std::span<const std::int64_t> p) { return call.dout.get({b, p[1], p[2], p[3]}); });
    one.forward();
    one.backward();
    for (std::int64_t j = 0; j < 6; ++j) {
      const bool used = j >= first_k[b] && j < first_k[b] + used_k[b];
      for (std::int64_t d = 0; d < 4; ++d) {
        EXPECT_EQ(call.dk.get({b, j, 0, d}), used ? one.dk.get({0, j - first_k[b], 0, d}) : 0.0);
        EXPECT_EQ(call.dv.get({b, j, 0, d}), used ? one.dv.get({0, j - first_k[b], 0, d}) : 0.0);
      }
    }
    for (std::int64_t i = 0; i < 4; ++i)
      for (std::int64_t d = 0; d < 4; ++d)
        EXPECT_EQ(call.dq.get({b, i, 1, d}), i < used_q[b] ? one.dq.get({0, i, 1, d}) : 0.0);
  }
}

TEST_F(Padded, BiasIsReadAtTheKeysPlaceInItsSequence) {
  call.bias = Tensor(DType::f32, {6});
  call.bias.fill(0.0);
  call.bias.set({1}, 50.0);  // key 0 of sequence 0, key 1 of sequence 1
  call.forward();
  EXPECT_NEAR(call.out.get({0, 2, 0, 0}), call.v.get({0, 1, 0, 0}), 1e-6);
  EXPECT_NEAR(call.out.get({1, 1, 0, 0}), call.v.get({1, 1, 0, 0}), 1e-6);
}

/// Packed: sequences of 2 and 0 and 1 query rows on 3 and 2 and 0 key rows; a row behind them of no sequence.
TEST(Packed, RowsOfNoSequenceStayUntouched) {
  verify::Random rng(4);
  Tensor q(DType::f32, {4, 2, 4}), k(DType::f32, {6, 1, 4}), v(DType::f32, {6, 1, 4});
  for (Tensor* tensor : {&q, &k, &v}) tensor->fill_with([&](auto) { return rng.normal(); });
  Tensor out(DType::f32, {4, 2, 4}), lse(DType::f32, {2, 4});
  out.fill(123.0);
  lse.fill(123.0);
  const Tensor cu_q = DenseCall::lengths({0, 2, 2, 3}), cu_k = DenseCall::lengths({0, 3, 5, 5});
  AttentionOptions options;
  options.layout = Layout::thd;
  options.cu_seqlens_q = cu_q.view();
  options.cu_seqlens_k = cu_k.view();
  attention_forward({q.view(), k.view(), v.view(), out.view(), lse.view(), options}, {"reference"});

  DenseCall first({.seqlen_q = 2, .seqlen_k = 3, .heads_q = 2, .heads_k = 1});
  const auto rows = [](const Tensor& from) {
    return [&from](std::span<const std::int64_t> p) { return from.get({p[1], p[2], p[3]}); };
  };
  first.q.fill_with(rows(q));
  first.k.fill_with(rows(k));
  first.v.fill_with(rows(v));
  first.forward();
  for (std::int64_t h = 0; h < 2; ++h) {
    EXPECT_EQ(lse.get({h, 1}), first.lse.get({0, h, 1}));
    EXPECT_EQ(out.get({1, h, 2}), first.out.get({0, 1, h, 2}));
    EXPECT_EQ(lse.get({h, 2}), -kInf);  // the last sequence has no keys
    EXPECT_EQ(out.get({2, h, 0}), 0.0);
    EXPECT_EQ(lse.get({h, 3}), 123.0);
    EXPECT_EQ(out.get({3, h, 0}), 123.0);
  }
}

}  // namespace
}  // namespace tilewise::test
