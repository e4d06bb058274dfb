// NaN, infinities, subnormals and huge scores: where they may go, and where they must not.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "../support/dense_call.hpp"
#include "implementation_test.hpp"

namespace tilewise::test {
namespace {

class SpecialValues : public ImplementationTest {
 protected:
  /// For rows that compile kernels: few of them, by head dims and tiles of rows that all calls share.
  [[nodiscard]] Sizes sample(Sizes sizes) const {
    if (!is_compiled()) return sizes;
    sizes.dim = sizes.dim_v = 23;
    if (sizes.seqlen_q > 1) sizes.seqlen_q = 70;
    return sizes;
  }
  /// Relative to 1: what rounding to the dtype may cost, with some room.
  static double tolerance(DType dtype) { return dtype == DType::bf16 ? 0.02 : dtype == DType::f16 ? 0.003 : 1e-5; }

  /// Both runs start from the same inputs; every output must be close.
  void expect_like_reference(DenseCall call, bool backward = true) {
    DenseCall reference = call;
    reference.out = Tensor(call.sizes.dtype, shape_of(call.out));
    reference.lse = Tensor(call.statistics(), shape_of(call.lse));
    reference.forward();
    call.forward(GetParam());
    expect_close(call.out, reference.out, "out");
    expect_close(call.lse, reference.lse, "lse");
    if (!backward) return;
    call.out = reference.out, call.lse = reference.lse;
    call.prepare_backward(true);
    reference = call;
    for (Tensor* t : {&reference.dq, &reference.dk, &reference.dv, &reference.dbias, &reference.dsink})
      if (t->view().defined()) *t = Tensor(t->view().dtype, shape_of(*t));
    reference.backward();
    call.backward(GetParam());
    expect_close(call.dq, reference.dq, "dq");
    expect_close(call.dk, reference.dk, "dk");
    expect_close(call.dv, reference.dv, "dv");
    if (call.dbias.view().defined()) expect_close(call.dbias, reference.dbias, "dbias");
    if (call.dsink.view().defined()) expect_close(call.dsink, reference.dsink, "dsink");
  }
  static std::vector<std::int64_t> shape_of(const Tensor& t) {
    const TensorView view = t.view();
    return {view.shape.begin(), view.shape.begin() + view.rank};
  }
  static void expect_close(const Tensor& got, const Tensor& expected, const std::string& name) {
    double largest = 0.0;
    for (const double value : expected.values())
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    const double bound = tolerance(expected.view().dtype == DType::f32 ? got.view().dtype : expected.view().dtype);
    for (std::int64_t i = 0; i < got.size(); ++i) {
      if (std::isnan(expected.at(i)) ? std::isnan(got.at(i)) : got.at(i) == expected.at(i)) continue;
      ASSERT_NEAR(got.at(i), expected.at(i), std::max(bound, 0.01) * largest) << name << ", element " << i;
    }
  }
};

TEST_P(SpecialValues, ASequenceOfNanReachesNoOther) {
  for (const DType dtype : dtypes()) {
    for (const std::int64_t seqlen_q : {1, 70}) {
      const auto make_call = [&] {
        return DenseCall(sample({.batch = 3,
                                 .seqlen_q = seqlen_q,
                                 .seqlen_k = 90,
                                 .heads_q = 4,
                                 .heads_k = 2,
                                 .dim = 24,
                                 .dim_v = 40,
                                 .dtype = dtype}));
      };
      DenseCall clean = make_call(), dirty = make_call();
      for (Tensor* tensor : {&dirty.q, &dirty.k, &dirty.v}) {
        const Tensor& from = tensor == &dirty.q ? clean.q : tensor == &dirty.k ? clean.k : clean.v;
        const double value = tensor == &dirty.v ? kInfinity : kNan;
        tensor->fill_with(
            [&](std::span<const std::int64_t> p) { return p[0] == 1 ? value : from.get({p[0], p[1], p[2], p[3]}); });
      }
      for (DenseCall* call : {&clean, &dirty}) {
        call->forward(GetParam());
        call->prepare_backward();
        call->backward(GetParam());
      }
      const auto expect_same = [](const Tensor& a, const Tensor& b) {
        const std::int64_t sequence = a.size() / 3;
        for (std::int64_t i = 0; i < a.size(); ++i) {
          if (i / sequence == 1) continue;
          ASSERT_EQ(a.at(i), b.at(i)) << "element " << i;
        }
      };
      expect_same(clean.out, dirty.out);
      expect_same(clean.lse, dirty.lse);
      expect_same(clean.dq, dirty.dq);
      expect_same(clean.dk, dirty.dk);
      expect_same(clean.dv, dirty.dv);
      EXPECT_TRUE(std::isnan(dirty.out.get({1, 0, 0, 0})));  // and it does show in its own
    }
  }
}

TEST_P(SpecialValues, BiasOfMinusInfinityHidesRowsColumnsAndAll) {
  for (const DType dtype : dtypes()) {
    for (const std::int64_t rows : {2, 50}) {
      if (is_compiled() && rows == 2) continue;
      DenseCall call(sample({.seqlen_q = rows, .seqlen_k = 130, .heads_q = 2, .heads_k = 1, .dtype = dtype}));
      call.bias = Tensor(DType::f32, {1, 2, call.sizes.seqlen_q, 130});
      call.bias.fill_with([](std::span<const std::int64_t> p) {
        return p[2] % 3 == 1 || p[3] % 7 == 2 || p[3] < 64 ? -kInfinity : 0.5;
      });
      expect_like_reference(call);
      call.bias.fill(-kInfinity);
      expect_like_reference(call);
      call.forward(GetParam());
      for (const double value : call.lse.values()) EXPECT_EQ(value, -kInfinity);
      for (const double value : call.out.values()) EXPECT_EQ(value, 0.0);
    }
  }
}

TEST_P(SpecialValues, ASinkOfMinusInfinityIsNoSink) {
  for (const DType dtype : dtypes()) {
    DenseCall call(sample({.seqlen_q = 9, .seqlen_k = 5, .heads_q = 2, .heads_k = 2, .dtype = dtype}));
    call.options.mask = Mask::causal;  // rows 0 to 3 see nothing
    call.sink = Tensor(DType::f32, {2});
    call.sink.fill(-kInfinity);
    expect_like_reference(call);
    call.sink.set({1}, 80.0);  // and one that takes nearly all
    expect_like_reference(call);
  }
}

TEST_P(SpecialValues, HugeScoresOfEitherSign) {
  for (const DType dtype : dtypes()) {
    for (const double scale : {1.0, -1.0, 1e4, -1e4}) {  // scores to 8e6, where one unit of lse's f32 is 0.5
      DenseCall call(sample({.seqlen_q = 40, .seqlen_k = 70, .heads_q = 1, .heads_k = 1, .dim = 16, .dtype = dtype}));
      call.options.softmax_scale = scale;
      // One key stands out in every row, so that the weights don't hang on rounding.
      call.k.fill_with([](std::span<const std::int64_t> p) { return p[3] == 0 ? static_cast<double>(p[1]) : 0.0; });
      call.q.fill_with(
          [](std::span<const std::int64_t> p) { return p[3] == 0 ? 8.0 + static_cast<double>(p[1] % 4) : 0.0; });
      expect_like_reference(call, std::abs(scale) == 1.0);
    }
  }
}

TEST_P(SpecialValues, ScoresThatFallByHundredsFromTileToTile) {
  for (const DType dtype : dtypes()) {
    for (const double direction : {1.0, -1.0}) {
      DenseCall call(sample({.seqlen_q = 30, .seqlen_k = 600, .dim = 4, .dim_v = 8, .dtype = dtype}));
      call.options.softmax_scale = 1.0;
      call.q.fill(1.0);
      call.k.fill_with(
          [&](std::span<const std::int64_t> p) { return direction * std::floor(static_cast<double>(p[1]) / 8.0); });
      expect_like_reference(call);
    }
  }
}

TEST_P(SpecialValues, ExtremeAlibiSlopes) {
  for (const DType dtype : dtypes()) {
    DenseCall call(sample({.seqlen_q = 60, .seqlen_k = 300, .heads_q = 2, .heads_k = 1, .dtype = dtype}));
    call.alibi_slopes = Tensor(call.statistics(), {2});
    call.alibi_slopes.set({0}, 100.0);  // the diagonal alone
    call.alibi_slopes.set({1}, -10.0);  // the farthest key alone
    expect_like_reference(call);
  }
}

TEST_P(SpecialValues, SubnormalAndLargeValues) {
  for (const DType dtype : dtypes()) {
    DenseCall large(sample({.seqlen_q = 20, .seqlen_k = 50, .dim = 8, .dtype = dtype}));
    large.v.fill_with([](std::span<const std::int64_t> p) { return p[1] % 2 ? 30000.0 : -20000.0; });
    expect_like_reference(large, false);
    if (dtype == DType::bf16) continue;  // its dot-product instruction reads subnormal numbers as zero
    DenseCall tiny(sample({.seqlen_q = 20, .seqlen_k = 50, .dim = 8, .dtype = dtype}));
    const double least = dtype == DType::f16 ? 0x1p-20 : 1e-39;
    tiny.v.fill_with([&](std::span<const std::int64_t> p) { return least * static_cast<double>(1 + p[1] % 5); });
    DenseCall reference = tiny;
    reference.out = Tensor(dtype, shape_of(tiny.out));
    reference.forward();
    tiny.forward(GetParam());
    for (std::int64_t i = 0; i < tiny.out.size(); ++i) {
      if (dtype == DType::f32 && tiny.out.at(i) == 0.0)
        continue;  // its denormals may count as 0; f16's are none in fp32
      ASSERT_NEAR(tiny.out.at(i), reference.out.at(i), 0.05 * least) << "element " << i;
    }
  }
}

TEST_P(SpecialValues, MinusZeroAndEqualKeys) {
  for (const DType dtype : dtypes()) {
    DenseCall call(sample({.seqlen_q = 33, .seqlen_k = 77, .dim = 8, .dtype = dtype}));
    call.q.fill(-0.0);
    call.k.fill(1.0);
    expect_like_reference(call);
  }
}

TILEWISE_FOR_EVERY_IMPLEMENTATION(SpecialValues);
TILEWISE_FOR_EVERY_COMPILED_IMPLEMENTATION(SpecialValues);

}  // namespace
}  // namespace tilewise::test
