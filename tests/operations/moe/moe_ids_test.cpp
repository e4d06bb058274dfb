// What ids mean on every implementation: experts of others in any spelling, experts that nobody or everybody wants,
// tokens that are no numbers.
#include <cmath>
#include <limits>

#include "moe_support.hpp"

namespace tilewise {
namespace {

using test::element, test::SmallMoe;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<double> values_of(const TensorView& view) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < view.numel(); ++i) values.push_back(element(view, i));
  return values;
}
void poison(const TensorView& view) {
  for (std::int64_t i = 0; i < view.numel(); ++i) test::set_element(view, i, kNan);
}

/// Calls visit(name, call) for each implementation of either pass of a small problem whose ids are of that dtype.
template <typename Visit>
void for_each_row(DType ids, const Visit& visit) {
  SmallMoe call;
  call.forward.topk_ids = call.tensor({SmallMoe::kTokens, SmallMoe::kTopK}, ids);
  for (std::int64_t i = 0; i < SmallMoe::kTokens * SmallMoe::kTopK; ++i) call.set_id(i, i * 3 % SmallMoe::kExperts);
  call.share_inputs();
  for (const std::string& name : test::rows_for(describe(call.forward))) visit(name, call);
}

TEST(MoeIds, OfOthersAddNothingWhateverTheyWeigh) {
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t id :
       {std::int64_t{-1}, std::int64_t{4}, std::int64_t{5}, std::int64_t{1} << 32, kFar, -kFar - 1}) {
    for_each_row(DType::i64, [&](const std::string& name, SmallMoe call) {
      moe(call.forward, {name});
      const std::vector<double> whole = values_of(call.forward.out);
      call.set_id(0, id), call.set_id(1, id), call.set_id(3, id);
      for (const std::int64_t i : {0, 1, 3}) test::set_element(call.forward.topk_weights, i, kNan);
      poison(call.forward.out);
      moe(call.forward, {name});
      for (std::int64_t n = 0; n < SmallMoe::kHidden; ++n) {
        EXPECT_EQ(element(call.forward.out, n), 0.0) << name << " " << id;
        EXPECT_TRUE(std::isfinite(element(call.forward.out, SmallMoe::kHidden + n))) << name << " " << id;
      }
      for (std::int64_t i = 2 * SmallMoe::kHidden; i < 5 * SmallMoe::kHidden; ++i)
        EXPECT_EQ(element(call.forward.out, i), whole[static_cast<std::size_t>(i)]) << name << " " << id;
    });
  }
}

/// Two ranks with half of the experts each add up to the whole.
TEST(MoeIds, RangesOfExpertsAddUp) {
  for_each_row(DType::i32, [](const std::string& name, SmallMoe call) {
    moe(call.forward, {name});
    const std::vector<double> whole = values_of(call.forward.out);
    std::vector<double> sum(whole.size());
    for (const std::int64_t first : {0, 2}) {
      MoeArguments half = call.forward;
      const auto part = [first](TensorView& view) {
        view.data = static_cast<std::byte*>(view.data) + first * view.strides[0] * 4;
        view.shape[0] = 2;
      };
      part(half.gate_up), part(half.down), part(half.gate_up_bias), part(half.down_bias);
      half.first_expert = first;
      half.out = call.tensor({SmallMoe::kTokens, SmallMoe::kHidden}, DType::f32);
      moe(half, {name});
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += element(half.out, static_cast<std::int64_t>(i));
    }
    for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], whole[i], 1e-5) << name;
  });
}

TEST(MoeIds, ANaNReachesItsOwnTokenAlone) {
  for_each_row(DType::i32, [](const std::string& name, SmallMoe call) {
    moe(call.forward, {name});
    const std::vector<double> whole = values_of(call.forward.out);
    test::set_element(call.forward.x, 7, kNan);             // of token 1
    test::set_element(call.forward.topk_weights, 6, kNan);  // of token 3
    moe(call.forward, {name});
    for (std::int64_t i = 0; i < 30; ++i) {
      const std::int64_t token = i / SmallMoe::kHidden;
      if (token == 1 || token == 3) {
        EXPECT_TRUE(std::isnan(element(call.forward.out, i))) << name << " " << i;
      } else {
        EXPECT_EQ(element(call.forward.out, i), whole[static_cast<std::size_t>(i)]) << name << " " << i;
      }
    }
  });
}

TEST(MoeIds, NoTokensNoExpertsAndNoneOfThemChosen) {
  for_each_row(DType::i32, [](const std::string& name, SmallMoe call) {
    MoeArguments none = call.forward;
    none.x.shape[0] = none.topk_ids.shape[0] = none.topk_weights.shape[0] = none.out.shape[0] = 0;
    moe(none, {name});
    none = call.forward;
    none.topk_ids.shape[1] = none.topk_weights.shape[1] = 0;
    poison(none.out);
    moe(none, {name});
    EXPECT_EQ(values_of(none.out), std::vector<double>(30)) << name;
    none = call.forward;
    none.gate_up.shape[0] = none.down.shape[0] = none.gate_up_bias.shape[0] = none.down_bias.shape[0] = 0;
    poison(none.out);
    moe(none, {name});
    EXPECT_EQ(values_of(none.out), std::vector<double>(30)) << name;
  });
}

/// With batch_invariant the bits of a token do not depend on what else there is.
TEST(MoeIds, ATokenAloneIsWhatItIsAmongOthers) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    SmallMoe call(dtype);
    call.forward.batch_invariant = true;
    for (const std::string& name : test::rows_for(describe(call.forward))) {
      moe(call.forward, {name});
      for (std::int64_t t = 0; t < SmallMoe::kTokens; ++t) {
        MoeArguments one = call.forward;
        for (TensorView* view : {&one.x, &one.topk_ids, &one.topk_weights}) {
          view->data = static_cast<std::byte*>(view->data) +
                       t * view->strides[0] * static_cast<std::int64_t>(size_of(view->dtype));
          view->shape[0] = 1;
        }
        one.out = call.tensor({1, SmallMoe::kHidden}, dtype);
        moe(one, {name});
        for (std::int64_t n = 0; n < SmallMoe::kHidden; ++n)
          EXPECT_EQ(element(one.out, n), element(call.forward.out, t * SmallMoe::kHidden + n)) << name << " " << t;
      }
    }
  }
}

TEST(MoeIds, WhatNobodyChoseHasNoGradient) {
  SmallMoe call;
  for (std::int64_t i = 0; i < 10; ++i) call.set_id(i, i % 3 == 0 ? -1 : 2);  // experts 0, 1 and 3 are nobody's
  call.share_inputs();
  for (const std::string& name : test::rows_for(describe(call.backward))) {
    MoeBackwardArguments& b = call.backward;
    for (const TensorView& view : {b.dx, b.dtopk_weights, b.dgate_up, b.ddown, b.dgate_up_bias, b.ddown_bias})
      poison(view);
    moe_backward(b, {name});
    for (const TensorView& view : {b.dgate_up, b.ddown, b.dgate_up_bias, b.ddown_bias}) {
      const std::int64_t size = view.numel() / SmallMoe::kExperts;
      for (std::int64_t i = 0; i < view.numel(); ++i) {
        if (i / size == 2)
          EXPECT_TRUE(std::isfinite(element(view, i))) << name;
        else
          EXPECT_EQ(element(view, i), 0.0) << name;
      }
    }
    for (std::int64_t i = 0; i < 10; ++i) EXPECT_EQ(element(b.dtopk_weights, i) == 0.0, i % 3 == 0) << name;
  }
}

}  // namespace
}  // namespace tilewise
