// NaN and infinities never vanish: at every length of keys, in every input, forward and backward; and they stay out of
// what sees nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "../support/dense_call.hpp"
#include "../support/expect_passed.hpp"
#include "implementation_test.hpp"

namespace tilewise::test {
namespace {

class NotANumber : public ImplementationTest {
 protected:
  /// Finite exactly where the reference is; a log-sum-exp of -infinity and of NaN are not the same.
  static void expect_same_classes(const Tensor& got, const Tensor& expected, const std::string& name) {
    for (std::int64_t i = 0; i < got.size(); ++i) {
      const double a = got.at(i), b = expected.at(i);
      ASSERT_EQ(std::isfinite(a), std::isfinite(b)) << name << ", element " << i << ": " << a << ", reference " << b;
      if (!name.starts_with("lse")) continue;
      ASSERT_EQ(a == -kInfinity, b == -kInfinity) << name << ", element " << i;
    }
  }
  /// `call`'s forward pass, which writes its out and lse, and, where `backward` is given, its gradients, from the
  /// reference's out and lse.
  void expect_classes(DenseCall call, const std::string& where, bool backward = false) {
    if (GetParam() == "reference") {  // beside itself it shows nothing; what tests say of its numbers counts
      call.forward();
      if (backward) call.backward();
      return;
    }
    DenseCall reference = call;
    reference.out = like(call.out), reference.lse = like(call.lse);
    reference.forward();
    call.forward(GetParam());
    expect_same_classes(call.out, reference.out, "out, " + where);
    expect_same_classes(call.lse, reference.lse, "lse, " + where);
    if (!backward) return;
    call.out = reference.out, call.lse = reference.lse;
    reference = call;
    for (Tensor DenseCall::* t : {&DenseCall::dq, &DenseCall::dk, &DenseCall::dv, &DenseCall::dbias, &DenseCall::dsink})
      if ((call.*t).view().defined()) reference.*t = like(call.*t);
    reference.backward();
    call.backward(GetParam());
    expect_same_classes(call.dq, reference.dq, "dq, " + where);
    expect_same_classes(call.dk, reference.dk, "dk, " + where);
    expect_same_classes(call.dv, reference.dv, "dv, " + where);
    if (call.dbias.view().defined()) expect_same_classes(call.dbias, reference.dbias, "dbias, " + where);
    if (call.dsink.view().defined()) expect_same_classes(call.dsink, reference.dsink, "dsink, " + where);
  }
  static Tensor like(const Tensor& t) {
    const TensorView view = t.view();
    return {view.dtype, {view.shape.begin(), view.shape.begin() + view.rank}};
  }
  /// Of consecutive lengths each has another value in another place.
  static double value_of(std::int64_t length) {
    return length % 3 == 0 ? kNan : length % 3 == 1 ? kInfinity : -kInfinity;
  }
  static std::int64_t place_of(std::int64_t length, std::int64_t turn) {
    return (length + turn) % 4 == 0 ? 0 : (length + turn) % 4 == 1 ? length - 1 : (length + turn) * 7 % length;
  }
};

TEST_P(NotANumber, ShowsAtEveryLength) {
  constexpr std::int64_t kPastTwoTiles = 515;
  for (const DType dtype : dtypes()) {
    for (const std::int64_t seqlen_q : {1, 20}) {
      for (std::int64_t length = 1; length <= kPastTwoTiles; ++length) {
        // A sequence for each input, and one of numbers alone.
        DenseCall call({.batch = 4, .seqlen_q = seqlen_q, .seqlen_k = length, .dim = 3, .dim_v = 2, .dtype = dtype});
        call.q.set({0, place_of(seqlen_q, length), 0, length % 3}, length % 2 ? kNan : value_of(length));
        call.k.set({1, place_of(length, 1), 0, length % 3}, value_of(length));
        call.v.set({2, place_of(length, 2), 0, length % 2}, value_of(length));
        expect_classes(call, std::string(to_string(dtype)) + " length " + std::to_string(length));
        if (length % 2) {
          ASSERT_TRUE(std::isnan(call.lse.get({0, 0, place_of(seqlen_q, length)}))) << length;
        }
        ASSERT_FALSE(std::isfinite(call.out.get({2, seqlen_q - 1, 0, length % 2}))) << length;
        ASSERT_TRUE(std::isfinite(call.out.get({2, seqlen_q - 1, 0, 1 - length % 2}))) << length;
      }
    }
  }
}

TEST_P(NotANumber, ShowsWhereKeysAreSplit) {
  for (const DType dtype : dtypes()) {
    for (const std::int64_t length : {1024, 1025, 2500, 4097}) {
      for (const std::int64_t place : {std::int64_t{0}, std::int64_t{1023}, std::int64_t{1024} % length, length - 1}) {
        for (const bool all : {false, true}) {
          DenseCall call({.batch = 3, .seqlen_k = length, .dim = 3, .dim_v = 2, .dtype = dtype});
          call.sink = Tensor(DType::f32, {1});
          call.sink.fill(length % 2 ? 0.5 : -kInfinity);
          if (all) call.q.fill_with([&](auto p) { return p[0] == 0 ? kNan : call.q.get({p[0], p[1], p[2], p[3]}); });
          if (!all) call.k.set({0, place, 0, 1}, kNan);
          call.v.set({1, place, 0, 1}, value_of(place));
          expect_classes(call, std::to_string(length) + " place " + std::to_string(place));
        }
      }
    }
  }
}

TEST_P(NotANumber, ReachesGradients) {
  for (const DType dtype : dtypes()) {
    for (const std::int64_t seqlen_q : {1, 33, 100}) {
      for (const std::int64_t length : {1, 2, 15, 17, 32, 63, 65, 127, 129, 255, 257, 515}) {
        DenseCall call({.batch = 7, .seqlen_q = seqlen_q, .seqlen_k = length, .dim = 3, .dim_v = 2, .dtype = dtype});
        const bool options = length % 2 == 0;
        if (options) call.bias = call.normal(DType::f32, {7, 1, seqlen_q, length});
        if (options) call.options.softcap = 3.0;
        call.prepare_backward(true);
        const std::int64_t row = place_of(seqlen_q, length), key = place_of(length, seqlen_q);
        call.q.set({0, row, 0, 1}, kNan);
        call.k.set({1, key, 0, 1}, kNan);
        call.v.set({2, key, 0, 1}, value_of(length));
        call.dout.set({3, row, 0, 1}, value_of(length + 1));
        call.dlse.set({4, 0, row}, value_of(length + 2));
        if (options) call.bias.set({5, 0, row, key}, kNan);
        expect_classes(call, std::string(to_string(dtype)) + " length " + std::to_string(length), true);
      }
    }
  }
}

TEST_P(NotANumber, AFalseBiasHidesIt) {
  for (const DType dtype : dtypes()) {
    for (const std::int64_t seqlen_q : {1, 40}) {
      DenseCall call({.seqlen_q = seqlen_q, .seqlen_k = 70, .dim = 8, .dim_v = 8, .dtype = dtype});
      call.bias = Tensor(DType::boolean, {1, 1, 1, 70});
      call.bias.fill_with([](std::span<const std::int64_t> p) { return p[3] % 9 == 4 ? 0.0 : 1.0; });
      call.prepare_backward();
      for (const std::int64_t key : {4, 67}) call.k.set({0, key, 0, 2}, key == 4 ? kNan : kInfinity);
      call.forward(GetParam());
      for (const double value : call.lse.values()) ASSERT_TRUE(std::isfinite(value));
      for (const double value : call.out.values()) ASSERT_TRUE(std::isfinite(value));
      call.forward();
      call.backward(GetParam());
      for (std::int64_t key : {4, 67}) {
        for (std::int64_t d = 0; d < 8; ++d) {
          EXPECT_EQ(call.dk.get({0, key, 0, d}), 0.0);
          EXPECT_EQ(call.dv.get({0, key, 0, d}), 0.0);
        }
      }
      for (const double value : call.dv.values()) ASSERT_TRUE(std::isfinite(value));
      // The hidden key's own column may reach dq, no other.
      for (std::int64_t i = 0; i < seqlen_q; ++i) ASSERT_TRUE(std::isfinite(call.dq.get({0, i, 0, 3})));
    }
  }
}

/// A bias of -infinity hides numbers, and not what is none: the sum is NaN.
TEST_P(NotANumber, ABiasOfMinusInfinityDoesNotHideIt) {
  for (const DType dtype : dtypes()) {
    for (const std::int64_t seqlen_q : {1, 40}) {
      DenseCall call({.batch = 3, .seqlen_q = seqlen_q, .seqlen_k = 70, .dim = 4, .dim_v = 4, .dtype = dtype});
      call.bias = Tensor(DType::f32, {3, 1, seqlen_q, 70});
      call.bias.fill_with([](std::span<const std::int64_t> p) { return p[0] == 1 || p[3] == 5 ? -kInfinity : 0.0; });
      call.prepare_backward();
      call.k.set({0, 5, 0, 1}, kNan);             // one of the scores
      call.q.set({1, seqlen_q - 1, 0, 1}, kNan);  // all of them, every one with a bias of -infinity
      call.k.set({2, 9, 0, 1}, kNan);             // beside one that is hidden
      expect_classes(call, "bias", true);
      call.forward(GetParam());
      EXPECT_TRUE(std::isnan(call.lse.get({0, 0, 0})));
      EXPECT_TRUE(std::isnan(call.lse.get({1, 0, seqlen_q - 1})));
      if (seqlen_q > 1) {
        EXPECT_EQ(call.lse.get({1, 0, 0}), -kInfinity);
      }
      call.forward();
      call.backward(GetParam());
      // Of a row of NaN nothing comes to the key that it does not see.
      EXPECT_EQ(call.dbias.get({2, 0, 0, 5}), 0.0);
      EXPECT_EQ(call.dk.get({2, 5, 0, 0}), 0.0);
      EXPECT_EQ(call.dv.get({2, 5, 0, 0}), 0.0);
    }
  }
}

TEST_P(NotANumber, StaysOutOfRowsThatSeeNothing) {
  for (const DType dtype : dtypes()) {
    for (const auto& [seqlen_q, seqlen_k] : {std::pair{60, 20}, {8, 3}, {300, 150}}) {
      for (const double sink : {-kInfinity, 1.5}) {
        DenseCall call({.seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .dim = 8, .dim_v = 8, .dtype = dtype});
        call.options.mask = Mask::causal;  // the first seqlen_q - seqlen_k rows see nothing
        call.sink = Tensor(DType::f32, {1});
        call.sink.fill(sink);
        call.q.fill(kNan);
        call.k.fill(kNan);
        call.v.fill(kNan);
        call.prepare_backward(true);
        call.dout.fill(kNan);
        for (const bool of_reference : {false, true}) {
          call.forward(of_reference ? "reference" : GetParam());
          for (std::int64_t i = 0; i < seqlen_q; ++i) {
            if (i < seqlen_q - seqlen_k) {
              EXPECT_DOUBLE_EQ(call.lse.get({0, 0, i}), sink) << i;  // through base 2 and back
            } else {
              EXPECT_TRUE(std::isnan(call.lse.get({0, 0, i}))) << i;
            }
            for (std::int64_t d = 0; d < 8; ++d) {
              const double out = call.out.get({0, i, 0, d});
              ASSERT_TRUE(i < seqlen_q - seqlen_k ? out == 0.0 : std::isnan(out)) << i << ": " << out;
            }
          }
        }
        call.backward(GetParam());
        for (std::int64_t i = 0; i < seqlen_q; ++i) {
          const double dq = call.dq.get({0, i, 0, 0});
          if (i >= seqlen_q - seqlen_k) {
            EXPECT_FALSE(std::isfinite(dq)) << i;
          } else if (sink == -kInfinity) {
            EXPECT_EQ(dq, 0.0) << i;
          }
        }
      }
    }
  }
}

/// A value's weight may underflow, or a sink take all of it: what is no number still counts.
TEST_P(NotANumber, OfAValueCountsWithAnyWeight) {
  for (const DType dtype : dtypes()) {
    for (const std::int64_t seqlen_q : {1, 40}) {
      for (const double value : {kNan, kInfinity, -kInfinity}) {
        DenseCall call({.batch = 2, .seqlen_q = seqlen_q, .seqlen_k = 50, .dim = 4, .dim_v = 4, .dtype = dtype});
        call.bias = Tensor(DType::f32, {2, 1, 1, 50});
        call.bias.fill_with([](std::span<const std::int64_t> p) { return p[0] == 0 && p[3] == 7 ? -400.0 : 0.0; });
        call.v.set({0, 7, 0, 1}, value);
        expect_classes(call, "bias");
        call.bias = Tensor();
        call.sink = Tensor(DType::f32, {1});
        call.sink.fill(400.0);
        expect_classes(call, "sink");
        call.forward(GetParam());
        EXPECT_FALSE(std::isfinite(call.out.get({0, 0, 0, 1})));
        EXPECT_TRUE(std::isfinite(call.out.get({0, 0, 0, 0})));
      }
    }
  }
}

TEST_P(NotANumber, SoftcapBoundsAnInfiniteScore) {
  for (const DType dtype : dtypes()) {
    for (const double value : {kInfinity, -kInfinity, kNan}) {
      DenseCall call({.seqlen_q = 30, .seqlen_k = 50, .dim = 1, .dim_v = 4, .dtype = dtype});
      call.options.softcap = 2.0;
      call.prepare_backward();
      call.k.set({0, 11, 0, 0}, value);
      expect_classes(call, "softcap", true);
      call.forward(GetParam());
      EXPECT_EQ(std::isfinite(call.lse.get({0, 0, 3})), !std::isnan(value));
    }
  }
}

/// Scale and sign of what multiplies the scores leave a NaN one.
TEST_P(NotANumber, SurvivesEveryScale) {
  for (const DType dtype : dtypes()) {
    for (const double scale : {0.0, -1.0, 1e-30}) {
      DenseCall call({.batch = 2, .seqlen_q = 30, .seqlen_k = 17, .dim = 4, .dim_v = 4, .dtype = dtype});
      call.options.softmax_scale = scale;
      call.prepare_backward();
      call.q.set({0, 3, 0, 1}, kNan);
      call.k.set({1, 3, 0, 1}, kNan);
      expect_classes(call, "scale", true);
    }
  }
}

TEST_P(NotANumber, IsDrawnAndCompared) {
  const verify::Filter filter{supported_features(), 2e5};
  int checked = 0;
  for (std::uint64_t seed = seed_base() + 900'000u; checked < 60; ++seed) {
    if (!verify::draws_special_values(seed)) continue;
    ++checked;
    expect_passed(verify::random_problem(seed, filter), GetParam(), seed);
  }
}

TILEWISE_FOR_EVERY_IMPLEMENTATION(NotANumber);

}  // namespace
}  // namespace tilewise::test
