// merge(): partial results give what the whole would have given, and every bad argument is named.
#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "device/common/float16.h"
#include "support.hpp"

namespace tilewise {
namespace {

using test::expect_error;
using test::expect_invalid;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kTiny = 1e-6;

/// A tensor that owns its floats.
struct Floats {
  Floats(std::initializer_list<std::int64_t> shape, std::vector<float> values_)
      : values(std::move(values_)), view(values.data(), DType::f32, shape) {}
  std::vector<float> values;
  TensorView view;
};

/// Two partials of one row and head_dim_v 2.
struct Pair {
  Floats out_a{{1, 1, 1, 2}, {1.0f, 2.0f}}, out_b{{1, 1, 1, 2}, {5.0f, 6.0f}};
  Floats lse_a{{1, 1, 1}, {0.0f}}, lse_b{{1, 1, 1}, {0.0f}};
  Floats out{{1, 1, 1, 2}, {kNan, kNan}}, lse{{1, 1, 1}, {kNan}}, sink{{1}, {0.0f}};

  void merge(bool with_sink = false) {
    const TensorView outs[] = {out_a.view, out_b.view}, lses[] = {lse_a.view, lse_b.view};
    tilewise::merge(outs, lses, with_sink ? sink.view : TensorView{}, out.view, lse.view);
  }
};

TEST(Merge, WeighsByTheDenominators) {
  Pair pair;
  pair.lse_b.values[0] = std::log(3.0f);
  pair.merge();
  EXPECT_NEAR(pair.out.values[0], 4.0, kTiny);
  EXPECT_NEAR(pair.out.values[1], 5.0, kTiny);
  EXPECT_NEAR(pair.lse.values[0], std::log(4.0), kTiny);
}

TEST(Merge, F64SumsInF64) {
  double out_a = 1.0 / 3.0, out_b = 3.0, lse_a = 0.1, lse_b = 0.1 + 1e-9, sink = 0.25, out = 0.0, lse = 0.0;
  const TensorView outs[] = {{&out_a, DType::f64, {1, 1, 1, 1}}, {&out_b, DType::f64, {1, 1, 1, 1}}};
  const TensorView lses[] = {{&lse_a, DType::f64, {1, 1, 1}}, {&lse_b, DType::f64, {1, 1, 1}}};
  const TensorView to{&out, DType::f64, {1, 1, 1, 1}}, lse_to{&lse, DType::f64, {1, 1, 1}};
  merge(outs, lses, {&sink, DType::f64, {1}}, to, lse_to);
  const double total = std::exp(lse_a) + std::exp(lse_b) + std::exp(sink);
  EXPECT_NEAR(out, (out_a * std::exp(lse_a) + out_b * std::exp(lse_b)) / total, 1e-15);
  EXPECT_NEAR(lse, std::log(total), 1e-15);
  float narrow = 0.0f;
  expect_error(ErrorCode::invalid_type, "softmax_lse: dtype must be f64 (got f32)",
               [&] { merge(outs, lses, {}, to, {&narrow, DType::f32, {1, 1, 1}}); });
  const TensorView narrow_lses[] = {lses[0], {&narrow, DType::f32, {1, 1, 1}}};
  expect_error(ErrorCode::invalid_type, "lses[1]: dtype must be f64 (got f32)",
               [&] { merge(outs, narrow_lses, {}, to, lse_to); });
  const TensorView narrow_outs[] = {outs[0], {&narrow, DType::f32, {1, 1, 1, 1}}};
  expect_error(ErrorCode::invalid_type, "outs[1]: dtype must be f64 (got f32)",
               [&] { merge(narrow_outs, lses, {}, to, lse_to); });
}

TEST(Merge, TheSinkMayHaveTheDtypeOfOut) {
  Pair pair;
  std::uint16_t out[2] = {0, 0}, sink = device::float_to_bf16(2.0f);
  const TensorView outs[] = {pair.out_a.view, pair.out_b.view}, lses[] = {pair.lse_a.view, pair.lse_b.view};
  merge(outs, lses, {&sink, DType::bf16, {1}}, {out, DType::bf16, {1, 1, 1, 2}}, pair.lse.view);
  EXPECT_NEAR(pair.lse.values[0], std::log(2.0 + std::exp(2.0)), kTiny);
  expect_error(ErrorCode::invalid_type, "sink: dtype must be f32 (got bf16)",
               [&] { merge(outs, lses, {&sink, DType::bf16, {1}}, pair.out.view, pair.lse.view); });
}

TEST(Merge, TheSinkJoinsTheDenominator) {
  Pair pair;
  pair.sink.values[0] = std::log(2.0f);
  pair.merge(true);
  EXPECT_NEAR(pair.out.values[0], 1.5, kTiny);
  EXPECT_NEAR(pair.out.values[1], 2.0, kTiny);
  EXPECT_NEAR(pair.lse.values[0], std::log(4.0), kTiny);
}

TEST(Merge, APartialThatSawNothingAddsNothing) {
  Pair pair;
  pair.lse_a.values[0] = -kInfinity;
  pair.out_a.values = {kNan, kInfinity};
  pair.out_a.view.data = pair.out_a.values.data();
  pair.merge();
  EXPECT_EQ(pair.out.values[0], 5.0f);
  EXPECT_EQ(pair.out.values[1], 6.0f);
  EXPECT_EQ(pair.lse.values[0], 0.0f);
}

TEST(Merge, RowsThatSawNothing) {
  Pair pair;
  pair.lse_a.values[0] = pair.lse_b.values[0] = -kInfinity;
  pair.merge();
  EXPECT_EQ(pair.out.values[0], 0.0f);
  EXPECT_EQ(pair.lse.values[0], -kInfinity);
  pair.sink.values[0] = 2.5f;
  pair.merge(true);
  EXPECT_EQ(pair.out.values[1], 0.0f);
  EXPECT_NEAR(pair.lse.values[0], 2.5, kTiny);
  pair.sink.values[0] = -kInfinity;
  pair.merge(true);
  EXPECT_EQ(pair.lse.values[0], -kInfinity);
}

TEST(Merge, ExtremeValuesNeitherOverflowNorVanish) {
  Pair pair;
  pair.lse_a.values[0] = 3e38f;
  pair.lse_b.values[0] = -3e38f;
  pair.merge();
  EXPECT_EQ(pair.out.values[0], 1.0f);
  EXPECT_EQ(pair.lse.values[0], 3e38f);
}

TEST(Merge, NaNStaysVisible) {
  for (const float other : {0.0f, -kInfinity, kInfinity, kNan}) {
    for (const bool first : {false, true}) {
      for (const bool with_sink : {false, true}) {
        Pair pair;
        (first ? pair.lse_a : pair.lse_b).values[0] = kNan;
        (first ? pair.lse_b : pair.lse_a).values[0] = other;
        pair.merge(with_sink);
        EXPECT_TRUE(std::isnan(pair.out.values[0])) << other;
        EXPECT_TRUE(std::isnan(pair.lse.values[0])) << other;
      }
    }
  }
}

TEST(Merge, AValuesNaNStaysInItsColumn) {
  Pair pair;
  pair.out_b.values = {kNan, 6.0f};
  pair.out_b.view.data = pair.out_b.values.data();
  pair.lse_b.values[0] = -200.0f;  // its weight underflows in fp32
  pair.merge();
  EXPECT_TRUE(std::isnan(pair.out.values[0]));
  EXPECT_EQ(pair.out.values[1], 2.0f);
  EXPECT_EQ(pair.lse.values[0], 0.0f);
}

TEST(Merge, ASinkThatIsNoNumber) {
  for (const float sink : {kNan, kInfinity}) {
    Pair pair;
    pair.sink.values[0] = sink;
    pair.merge(true);
    EXPECT_TRUE(std::isnan(pair.out.values[0]));
    EXPECT_FALSE(std::isfinite(pair.lse.values[0]));
    pair.lse_a.values[0] = pair.lse_b.values[0] = -kInfinity;  // sees nothing
    pair.merge(true);
    EXPECT_EQ(pair.out.values[0], 0.0f);
    EXPECT_FALSE(std::isfinite(pair.lse.values[0]));
  }
}

TEST(Merge, RefusesOutputsThatOverlapSomething) {
  Pair pair;
  const TensorView outs[] = {pair.out_a.view, pair.out_b.view}, lses[] = {pair.lse_a.view, pair.lse_b.view};
  const auto merged_into = [&](const TensorView& out, const TensorView& lse) {
    return [&, out, lse] { tilewise::merge(outs, lses, {}, out, lse); };
  };
  expect_invalid(
      "out: must not overlap outs[1] in memory (got f32[1, 1, 1, 2] that starts 0 bytes from f32[1, 1, 1, 2])",
      merged_into(pair.out_b.view, pair.lse.view));
  expect_invalid(
      "softmax_lse: must not overlap lses[0] in memory (got f32[1, 1, 1] that starts 0 bytes from f32[1, 1, 1])",
      merged_into(pair.out.view, pair.lse_a.view));
  TensorView lse = pair.lse.view;
  lse.data = pair.out.view.data;
  expect_invalid(
      "out: must not overlap softmax_lse in memory (got f32[1, 1, 1, 2] that starts 0 bytes from f32[1, 1, 1])",
      merged_into(pair.out.view, lse));
}

/// Random scores of every row over 30 keys, cut into three parts: out and lse of each part and of
/// the whole by definition, laid out as `layout` asks.
class CutProblem {
 public:
  explicit CutProblem(Layout layout) : layout_(layout), batch_(layout == Layout::thd ? 1 : 2) {
    for (int part = 0; part < kParts; ++part) {
      outs_.push_back(make_out());
      lses_.push_back(make_lse());
    }
    for (std::int64_t b = 0; b < batch_; ++b) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        for (std::int64_t s = 0; s < kSeq; ++s) fill_row(b, h, s);
      }
    }
  }

  void expect_merge_to_agree() {
    std::vector<TensorView> outs, lses;
    for (const Floats& partial : outs_) outs.push_back(partial.view);
    for (const Floats& partial : lses_) lses.push_back(partial.view);
    Floats out = make_out(), lse = make_lse();
    tilewise::merge(outs, lses, {}, out.view, lse.view, layout_);
    for (std::size_t i = 0; i < out.values.size(); ++i) EXPECT_NEAR(out.values[i], out_.values[i], kTiny);
    for (std::size_t i = 0; i < lse.values.size(); ++i) EXPECT_NEAR(lse.values[i], lse_.values[i], kTiny);
  }

 private:
  static constexpr std::int64_t kSeq = 3, kHeads = 4, kDim = 5;
  static constexpr int kParts = 3, kKeysPerPart = 10;

  /// The sums of one row over some keys.
  struct Sums {
    double total = 0;
    std::array<double, kDim> out{};
  };

  [[nodiscard]] Floats make_out() const {
    std::vector<float> values(static_cast<std::size_t>(batch_ * kSeq * kHeads * kDim), kNan);
    switch (layout_) {
      case Layout::bshd:
        return Floats({batch_, kSeq, kHeads, kDim}, std::move(values));
      case Layout::sbhd:
        return Floats({kSeq, batch_, kHeads, kDim}, std::move(values));
      case Layout::bhsd:
        return Floats({batch_, kHeads, kSeq, kDim}, std::move(values));
      case Layout::thd:
        break;
    }
    return Floats({kSeq, kHeads, kDim}, std::move(values));
  }
  [[nodiscard]] Floats make_lse() const {
    std::vector<float> values(static_cast<std::size_t>(batch_ * kSeq * kHeads), kNan);
    if (layout_ == Layout::thd) return Floats({kHeads, kSeq}, std::move(values));
    return Floats({batch_, kHeads, kSeq}, std::move(values));
  }

  void fill_row(std::int64_t b, std::int64_t h, std::int64_t s) {
    Sums whole;
    for (int part = 0; part < kParts; ++part) {
      Sums own;
      for (int key = 0; key < kKeysPerPart; ++key) {
        const double weight = std::exp(normal_(engine_));
        whole.total += weight, own.total += weight;
        for (std::size_t d = 0; d < kDim; ++d) {
          const double value = weight * normal_(engine_);
          whole.out[d] += value, own.out[d] += value;
        }
      }
      store(own, outs_[static_cast<std::size_t>(part)], lses_[static_cast<std::size_t>(part)], b, h, s);
    }
    store(whole, out_, lse_, b, h, s);
  }

  void store(const Sums& sums, Floats& out, Floats& lse, std::int64_t b, std::int64_t h, std::int64_t s) const {
    const std::int64_t row = layout_ == Layout::sbhd   ? (s * batch_ + b) * kHeads + h
                             : layout_ == Layout::bhsd ? (b * kHeads + h) * kSeq + s
                                                       : (b * kSeq + s) * kHeads + h;
    for (std::size_t d = 0; d < kDim; ++d) {
      out.values[static_cast<std::size_t>(row * kDim) + d] = static_cast<float>(sums.out[d] / sums.total);
    }
    lse.values[static_cast<std::size_t>((b * kHeads + h) * kSeq + s)] = static_cast<float>(std::log(sums.total));
  }

  Layout layout_;
  std::int64_t batch_;
  std::mt19937 engine_{3};
  std::normal_distribution<double> normal_;
  std::vector<Floats> outs_, lses_;
  Floats out_ = make_out(), lse_ = make_lse();
};

TEST(Merge, AgreesWithTheWholeInEveryLayout) {
  for (const Layout layout : {Layout::bshd, Layout::sbhd, Layout::bhsd, Layout::thd}) {
    CutProblem(layout).expect_merge_to_agree();
  }
}

TEST(Merge, HalfPrecision) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const auto narrow = dtype == DType::bf16 ? device::float_to_bf16 : device::float_to_f16;
    std::uint16_t a[2] = {narrow(1.0f), narrow(2.0f)}, result[2] = {};
    Pair pair;
    // One partial in the dtype of out, the other in f32.
    const TensorView outs[] = {TensorView(a, dtype, {1, 1, 1, 2}), pair.out_b.view};
    const TensorView lses[] = {pair.lse_a.view, pair.lse_b.view};
    tilewise::merge(outs, lses, {}, TensorView(result, dtype, {1, 1, 1, 2}), {});
    EXPECT_EQ(result[0], narrow(3.0f));
    EXPECT_EQ(result[1], narrow(4.0f));
  }
}

TEST(Merge, EmptyTensors) {
  const TensorView empty(nullptr, DType::f32, {0, 3, 2, 4}), lse(nullptr, DType::f32, {0, 2, 3});
  EXPECT_NO_THROW(tilewise::merge(std::span(&empty, 1), std::span(&lse, 1), {}, empty, lse));
}

TEST(Merge, BadArguments) {
  Pair pair;
  const TensorView outs[] = {pair.out_a.view, pair.out_b.view}, lses[] = {pair.lse_a.view, pair.lse_b.view};
  const TensorView &out = pair.out.view, &lse = pair.lse.view;
  expect_invalid("outs: must hold at least one partial result (got none)",
                 [&] { tilewise::merge({}, {}, {}, out, lse); });
  expect_invalid("lses: must have as many entries as outs, 2 (got 1)",
                 [&] { tilewise::merge(outs, std::span(lses, 1), {}, out, lse); });
  expect_invalid("out: must be given", [&] { tilewise::merge(outs, lses, {}, {}, lse); });
  expect_invalid("out: rank must be 3, [total_q, num_heads_q, head_dim_v] (got 4, shape [1, 1, 1, 2])",
                 [&] { tilewise::merge(outs, lses, {}, out, lse, Layout::thd); });
  Floats wide({1, 1, 1, 513}, std::vector<float>(513));
  expect_invalid("out: head_dim_v must be 1 to 512 (got 513)",
                 [&] { tilewise::merge(outs, lses, {}, wide.view, lse); });
  const TensorView bad_outs[] = {out, TensorView(pair.out_b.values.data(), DType::f32, {1, 1, 2, 1})};
  expect_invalid(
      "outs[1]: shape must be [batch_size, seqlen_q, num_heads_q, head_dim_v] = [1, 1, 1, 2] (got [1, 1, 2, "
      "1])",
      [&] { tilewise::merge(bad_outs, lses, {}, out, lse); });
  const TensorView bad_lses[] = {lse, TensorView(pair.out_b.values.data(), DType::f32, {1, 2, 1})};
  expect_invalid("lses[1]: shape must be [batch_size, num_heads_q, seqlen_q] = [1, 1, 1] (got [1, 2, 1])",
                 [&] { tilewise::merge(outs, bad_lses, {}, out, lse); });
  expect_invalid("sink: shape must be [num_heads_q] = [1] (got [2])",
                 [&] { tilewise::merge(outs, lses, TensorView(pair.out.values.data(), DType::f32, {2}), out, lse); });
  expect_error(ErrorCode::invalid_type, "outs[0]: must be on cuda:0, where out is (got cpu)", [&] {
    tilewise::merge(outs, lses, {}, TensorView(pair.out.values.data(), DType::f32, {1, 1, 1, 2}, {DeviceType::cuda, 0}),
                    lse);
  });
  expect_error(ErrorCode::invalid_type, "sink: must be on cpu, where out is (got hip:1)", [&] {
    tilewise::merge(outs, lses, TensorView(pair.sink.values.data(), DType::f32, {1}, {DeviceType::hip, 1}), out, lse);
  });
  std::uint16_t half[2] = {};
  const TensorView half_outs[] = {TensorView(half, DType::f16, {1, 1, 1, 2}), pair.out_b.view};
  expect_error(ErrorCode::invalid_type, "outs[0]: dtype must be f32 (got f16)",
               [&] { tilewise::merge(half_outs, lses, {}, out, lse); });
  expect_error(ErrorCode::invalid_type, "out: dtype must be f32, bf16, f16 or f64 (got i32)", [&] {
    tilewise::merge(outs, lses, {}, TensorView(pair.out.values.data(), DType::i32, {1, 1, 1, 2}), lse);
  });
}

}  // namespace
}  // namespace tilewise
