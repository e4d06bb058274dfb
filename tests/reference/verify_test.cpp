// The checks themselves: generated problems cover the feature space and are valid, and every kind
// of fault in an output is found.
#include "verify/verify.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "verify/call_tensors.hpp"
#include "verify/compare.hpp"
#include "verify/reach.hpp"

namespace tilewise::verify {
namespace {

TEST(RandomProblems, AreValidAndReproduceFromSeedAndText) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const Filter filter{.max_flops = 1e5};
    const Problem problem = random_problem(seed, filter);
    EXPECT_EQ(problem, random_problem(seed, filter));
    ASSERT_NO_THROW(validate(problem)) << to_string(problem);
    EXPECT_EQ(parse_problem(to_string(problem)), problem) << to_string(problem);
    EXPECT_LE(cost(problem), std::max(filter.max_flops, 2.0 * 5 * 576)) << to_string(problem);
    EXPECT_EQ(CallTensors(problem, seed).problem(), problem) << to_string(problem);
  }
}

TEST(RandomProblems, DrawEveryFeatureAndItsAbsence) {
  operations::attention::FeatureSet with, without;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const operations::attention::FeatureSet features = operations::attention::required_features(random_problem(seed));
    for (int i = 0; i < static_cast<int>(operations::attention::Feature::count_); ++i) {
      const auto feature = static_cast<operations::attention::Feature>(i);
      features.contains(feature) ? with.insert(feature) : without.insert(feature);
    }
  }
  EXPECT_EQ(operations::attention::to_string(operations::attention::FeatureSet::all().minus(with)), "");
  EXPECT_EQ(operations::attention::to_string(operations::attention::FeatureSet::all().minus(without)), "");
}

TEST(RandomProblems, KeepToTheFilter) {
  for (int i = 0; i < static_cast<int>(operations::attention::Feature::count_); ++i) {
    const auto left_out = static_cast<operations::attention::Feature>(i);
    const Filter filter{.features = operations::attention::FeatureSet::all().minus({left_out}), .max_flops = 1e5};
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      const Problem problem = random_problem(seed, filter);
      ASSERT_FALSE(operations::attention::required_features(problem).contains(left_out)) << to_string(problem);
    }
  }
  EXPECT_THROW((void)random_problem(1, {.features = {operations::attention::Feature::f32}}), Error);
  EXPECT_THROW((void)random_problem(1, {.features = {operations::attention::Feature::forward}}), Error);
}

TEST(RandomProblems, RoundHeadDimsUp) {
  for (const std::int64_t multiple : {8, 16, 200}) {
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      const Problem problem = random_problem(seed, {.max_flops = 1e5, .head_dim_multiple = multiple});
      ASSERT_NO_THROW(validate(problem)) << to_string(problem);
      EXPECT_EQ(problem.head_dim % multiple, 0) << to_string(problem);
      EXPECT_EQ(problem.head_dim_v % multiple, 0) << to_string(problem);
    }
  }
}

TEST(RandomProblems, ComeInOtherSizes) {
  int others = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const Filter filter{.max_flops = 1e5};
    const Problem problem = random_problem(seed, filter), resized = resized_problem(problem, seed + 1, filter);
    EXPECT_EQ(resized, resized_problem(problem, seed + 1, filter));
    ASSERT_NO_THROW(validate(resized)) << to_string(resized);
    EXPECT_LE(cost(resized), std::max(filter.max_flops, 2.0 * 5 * 576)) << to_string(resized);
    // The dimensions of a bias may turn into 1, and be left out; a window may span all keys.
    EXPECT_EQ(resized.head_dim, problem.head_dim);
    EXPECT_EQ(resized.dtype, problem.dtype);
    EXPECT_EQ(resized.layout, problem.layout);
    EXPECT_EQ(resized.softcap, problem.softcap);
    EXPECT_EQ(resized.bias, problem.bias);
    EXPECT_EQ(resized.seqused_k, problem.seqused_k);
    EXPECT_EQ(CallTensors(resized, seed).problem(), resized) << to_string(resized);
    others += resized.seqlen_k != problem.seqlen_k;
  }
  EXPECT_GT(others, 300);
}

TEST(RandomTensors, DependOnTheSeedAlone) {
  const Problem problem = random_problem(12, {.max_flops = 1e5});
  const CallTensors a(problem, 5), b(problem, 5), c(problem, 6);
  const std::vector<Output> out_a = a.make_outputs(1), out_b = b.make_outputs(2), out_c = c.make_outputs(1);
  for (const auto& [tensors, outputs] : {std::pair{&a, &out_a}, {&b, &out_b}, {&c, &out_c}})
    tensors->run(tensors->plan("reference", *outputs), *outputs);
  EXPECT_EQ(find_bit_difference(out_a[0], out_b[0]), "");
  EXPECT_NE(find_bit_difference(out_a[0], out_c[0]), "");
}

TEST(Check, TheReferenceAgreesWithItself) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const Report report = check_implementation(random_problem(seed, {.max_flops = 1e5}), "reference", seed);
    EXPECT_EQ(report.to_string(), "ok");
  }
}

TEST(Check, NamesARefusalAndTheCommandThatReproduces) {
  const Problem problem = parse_problem("attention_forward seqlen_q=4 head_dim=8");
  const Report report = check_implementation(problem, "reference", 7);
  EXPECT_EQ(
      report.reproduce,
      "tilewise verify --implementation reference --seed 7 --problem \"attention_forward seqlen_q=4 head_dim=8\"");
  EXPECT_EQ(check_implementation(problem, "no_such_name", 7).status, Status::failed);
}

/// Results of the reference on one problem, to be damaged.
class FaultFinding : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    problem_ = parse_problem(GetParam());
    tensors_ = std::make_unique<CallTensors>(problem_, 3);
    for (auto* outputs : {&expected_, &got_}) {
      *outputs = tensors_->make_outputs(outputs == &expected_ ? 1 : 2);
      tensors_->run(tensors_->plan("reference", *outputs), *outputs);
    }
    bounds_ = error_bounds(*tensors_, expected_);
  }
  /// The failure found in each output after damage(view) was done to it.
  template <typename Damage>
  void expect_failure(const std::string& part, Damage&& damage) {
    for (std::size_t i = 0; i < got_.size(); ++i) {
      ASSERT_EQ(compare(got_[i], expected_[i], bounds_[i]).failure, "");
      const TensorView view = got_[i].buffer.view();
      std::vector<std::uint64_t> kept;
      for_each_element(view, [&](auto, std::int64_t offset) { kept.push_back(bits_at(view, offset)); });
      damage(view);
      const std::string failure = compare(got_[i], expected_[i], bounds_[i]).failure;
      EXPECT_NE(failure.find(part), std::string::npos) << got_[i].name << ": " << failure;
      std::size_t n = 0;
      for_each_element(view, [&](auto, std::int64_t offset) { write_bits(view, offset, kept[n++]); });
    }
  }
  static void write_bits(const TensorView& view, std::int64_t offset, std::uint64_t bits) {
    const std::size_t size = size_of(view.dtype);
    std::memcpy(static_cast<std::byte*>(view.data) + static_cast<std::size_t>(offset) * size, &bits, size);
  }

  Problem problem_;
  std::unique_ptr<CallTensors> tensors_;
  std::vector<Output> expected_, got_;
  std::vector<ErrorBounds> bounds_;
};

TEST_P(FaultFinding, AnElementNeverWritten) {
  expect_failure("never written", [](const TensorView& view) { write_bits(view, 0, poison_of(view.dtype)); });
}

TEST_P(FaultFinding, NanAndInfinity) {
  expect_failure("got nan",
                 [](const TensorView& view) { store_at(view, 0, std::numeric_limits<double>::quiet_NaN()); });
  expect_failure("got -inf", [](const TensorView& view) { store_at(view, 0, -HUGE_VAL); });
}

TEST_P(FaultFinding, AWriteBehindTheTensor) {
  expect_failure("memory outside", [](const TensorView& view) {
    std::int64_t last = 0;
    for (int axis = 0; axis < view.rank; ++axis)
      last += (view.shape[static_cast<std::size_t>(axis)] - 1) * view.strides[static_cast<std::size_t>(axis)];
    write_bits(view, last + 1, 0);
  });
  // The guard stays damaged for the next output only where outputs share memory, which they don't.
}

TEST_P(FaultFinding, OneElementOffByATwentieth) {
  expect_failure("times the bound", [](const TensorView& view) {
    double largest = 0.0;
    std::int64_t where = 0;
    for_each_element(view, [&](auto, std::int64_t offset) {
      if (std::abs(value_at(view, offset)) <= largest) return;
      largest = std::abs(value_at(view, offset));
      where = offset;
    });
    store_at(view, where, 1.05 * value_at(view, where));
  });
}

TEST_P(FaultFinding, TwoRowsExchanged) {
  expect_failure("beyond", [](const TensorView& view) {
    std::vector<double> values;
    for_each_element(view, [&](auto, std::int64_t offset) { values.push_back(value_at(view, offset)); });
    for_each_element(view, [&](auto, std::int64_t offset) {
      store_at(view, offset, values.back());
      values.pop_back();
    });
  });
}

INSTANTIATE_TEST_SUITE_P(
    Verify, FaultFinding,
    testing::Values("attention_forward seqlen_q=20 seqlen_k=30 num_heads_q=2 head_dim=16 mask=causal",
                    "attention_forward dtype=bf16 seqlen_q=20 num_heads_q=2 head_dim=16",
                    "attention_forward dtype=f16 seqlen_q=20 num_heads_q=2 head_dim=16 dropout_p=0.5",
                    "attention_backward seqlen_q=20 num_heads_q=3 head_dim=16 sink=1 bias=f32[1,h,q,k] dbias=1 dsink=1",
                    "attention_backward dtype=bf16 seqlen_q=20 num_heads_q=2 head_dim=16 softcap=2"));

TEST(Compare, LostPrecisionShowsInTheNorm) {
  // Every element errs by a unit or two in the last place of bf16: none beyond its bound.
  const Problem problem =
      parse_problem("attention_forward dtype=bf16 seqlen_q=64 seqlen_k=200 num_heads_q=2 head_dim=32");
  const CallTensors tensors(problem, 3);
  const std::vector<Output> expected = tensors.make_outputs(1), got = tensors.make_outputs(1);
  for (const auto* outputs : {&expected, &got}) tensors.run(tensors.plan("reference", *outputs), *outputs);
  const TensorView view = got[0].buffer.view();
  for_each_element(view, [&](auto, std::int64_t offset) {
    const double value = value_at(view, offset);
    store_at(view, offset, value + std::copysign(0x1.4p-7, value) * std::abs(value));
  });
  const OutputReport report = compare(got[0], expected[0], error_bounds(tensors, expected)[0]);
  EXPECT_NE(report.failure.find("root mean square"), std::string::npos) << report.failure;
}

/// A call with special values whose results hold some, for classes to be exchanged in.
class ClassOfNumber : public testing::Test {
 protected:
  void draw(const char* problem, std::uint64_t seed) {
    tensors_ = std::make_unique<CallTensors>(parse_problem(problem), seed, Values::special);
    expected_ = tensors_->make_outputs(1), got_ = tensors_->make_outputs(1);
    for (const auto* outputs : {&expected_, &got_}) tensors_->run(tensors_->plan("reference", *outputs), *outputs);
    bounds_ = error_bounds(*tensors_, expected_);
    mark_reach(*tensors_, expected_, bounds_);
  }
  /// What is found where the first element of output `n` that is one of `from` becomes `to`; "-" where there is none.
  template <typename From>
  std::string failure_of(std::size_t n, From&& from, double to) {
    const TensorView view = got_[n].buffer.view();
    std::size_t index = 0;
    std::string failure = "-";
    for_each_element(view, [&](auto, std::int64_t offset) {
      const double value = value_at(view, offset);
      const bool wanted = failure == "-" && from(value, bounds_[n].reach[index++]);
      if (!wanted) return;
      store_at(view, offset, to);
      failure = compare(got_[n], expected_[n], bounds_[n]).failure;
      store_at(view, offset, value);
    });
    return failure;
  }

  std::unique_ptr<CallTensors> tensors_;
  std::vector<Output> expected_, got_;
  std::vector<ErrorBounds> bounds_;
};

TEST_F(ClassOfNumber, IsTheReferences) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const auto is_finite = [](double x, Reach reach) { return std::isfinite(x) && reach == Reach::none; };
  const auto is_reached = [](double x, Reach reach) { return std::isfinite(x) && reach == Reach::may; };
  const auto is_nan = [](double x, Reach) { return std::isnan(x); };
  const auto is_nan_of_scores = [](double, Reach reach) { return reach == Reach::must_nan; };
  const auto is_nan_of_values = [](double x, Reach reach) { return !std::isfinite(x) && reach != Reach::must_nan; };
  const auto is_nothing = [](double x, Reach) { return x == -HUGE_VAL; };
  const auto unlike = [](const std::string& failure) { return failure.find("the reference") != std::string::npos; };
  int found[6] = {};
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    draw("attention_forward batch_size=2 seqlen_q=30 seqlen_k=20 num_heads_q=2 head_dim=8 mask=causal softmax_lse=1",
         seed);
    ASSERT_EQ(compare(got_[0], expected_[0], bounds_[0]).failure, "");
    const auto expect = [&](int what, bool fails, const std::string& failure) {
      if (failure == "-") return;
      ++found[what];
      EXPECT_EQ(unlike(failure), fails) << what << ", seed " << seed << ": " << failure;
    };
    expect(0, true, failure_of(0, is_finite, kNan));
    expect(1, false, failure_of(0, is_reached, HUGE_VAL));
    expect(2, true, failure_of(0, is_nan, 0.0));
    expect(3, true, failure_of(0, is_nan_of_scores, HUGE_VAL));
    expect(4, false, failure_of(0, is_nan_of_values, -HUGE_VAL));
    expect(5, true, failure_of(1, is_nothing, kNan));
    expect(5, true, failure_of(1, is_nan, -HUGE_VAL));
  }
  for (const int count : found) EXPECT_GT(count, 0);
}

TEST(SpecialValues, AreDrawnForOneSeedInFour) {
  int special = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) special += draws_special_values(seed);
  EXPECT_NEAR(special, 1000, 100);
}

/// In all inputs, and everything else as without them.
TEST(SpecialValues, StandInEveryInput) {
  const Problem problem = parse_problem(
      "attention_backward dtype=bf16 layout=thd batch_size=3 max_seqlen_q=20 total_q=40 max_seqlen_k=30 total_k=60 "
      "num_heads_q=2 head_dim=8 head_dim_v=4 bias=f32[b,h,q,k] sink=1 dbias=1 dsink=1 dlse=1");
  int with[7] = {};
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const CallTensors special(problem, seed, Values::special), ordinary(problem, seed);
    const std::vector<Output> outputs = special.make_outputs(1);
    const auto views = [&](const CallTensors& tensors) {
      const BackwardArguments a = tensors.backward_arguments(outputs);
      return std::vector<TensorView>{a.q, a.k, a.v, a.options.bias, a.options.sink, a.dout, a.dlse};
    };
    const std::vector<TensorView> a = views(special), b = views(ordinary);
    for (std::size_t n = 0; n < a.size(); ++n) {
      int changed = 0;
      for_each_element(a[n], [&](auto position, std::int64_t offset) {
        if (bits_at(a[n], offset) == bits_at(b[n], offset_of(b[n], position))) return;
        ++changed;
        EXPECT_FALSE(std::isfinite(value_at(a[n], offset)));
      });
      EXPECT_LE(changed, 6);  // three, which two heads may share
      with[n] += changed > 0;
    }
  }
  for (const int count : with) EXPECT_GT(count, 5);
}

TEST(Compare, RowsOfNoSequenceMustStayUntouched) {
  const Problem problem =
      parse_problem("attention_forward layout=thd max_seqlen_q=4 total_q=9 max_seqlen_k=4 total_k=4 head_dim=8");
  const CallTensors tensors(problem, 3);
  const std::vector<Output> expected = tensors.make_outputs(1), got = tensors.make_outputs(2);
  for (const auto* outputs : {&expected, &got}) tensors.run(tensors.plan("reference", *outputs), *outputs);
  const std::vector<ErrorBounds> bounds = error_bounds(tensors, expected);
  EXPECT_EQ(compare(got[0], expected[0], bounds[0]).failure, "");
  const TensorView view = got[0].buffer.view();
  store_at(view, 8 * view.strides[0], 0.0);
  EXPECT_NE(compare(got[0], expected[0], bounds[0]).failure.find("none of the call's"), std::string::npos);
}

}  // namespace
}  // namespace tilewise::verify
