// Experts through the C interface.
#include <deque>
#include <string>

#include "moe_support.hpp"
#include "tilewise/c/moe.h"

namespace tilewise {
namespace {

using test::element, test::SmallMoe;

/// C's views of C++'s, which must outlive them.
class Tensors {
 public:
  const DLTensor* operator()(const TensorView& view) {
    views_.push_back(view);
    to_dlpack(views_.back(), &tensors_.emplace_back());
    return &tensors_.back();
  }

 private:
  std::deque<TensorView> views_;
  std::deque<DLTensor> tensors_;
};

tilewise_moe_tensors tensors_of(Tensors& c, const MoeArguments& a) {
  tilewise_moe_tensors tensors{};
  tensors.x = c(a.x);
  tensors.topk_ids = c(a.topk_ids);
  tensors.topk_weights = c(a.topk_weights);
  tensors.gate_up = c(a.gate_up);
  tensors.down = c(a.down);
  tensors.gate_up_bias = c(a.gate_up_bias);
  tensors.down_bias = c(a.down_bias);
  tensors.out = c(a.out);
  return tensors;
}

TEST(MoeC, ComputesWhatCppDoes) {
  SmallMoe call(DType::f32, MoeGate::interleaved);
  call.forward.activation = Activation::swiglu_oai;
  call.forward.clamp = MoeClamp::before;
  call.forward.limit = 0.5;
  moe(call.forward);
  tilewise_moe_options options;
  ASSERT_EQ(tilewise_moe_options_init(&options, sizeof options), TILEWISE_OK);
  options.gate = "interleaved";
  options.activation = "swiglu_oai";
  options.clamp = "before";
  options.limit = 0.5;
  MoeArguments other = call.forward;
  other.out = call.tensor({SmallMoe::kTokens, SmallMoe::kHidden}, DType::f32);
  Tensors c;
  const tilewise_moe_tensors tensors = tensors_of(c, other);
  ASSERT_EQ(tilewise_moe(&tensors, &options), TILEWISE_OK) << tilewise_last_error();
  for (std::int64_t i = 0; i < other.out.numel(); ++i) EXPECT_EQ(element(other.out, i), element(call.forward.out, i));
}

TEST(MoeC, HasGradients) {
  SmallMoe call;
  moe_backward(call.backward);
  const MoeBackwardArguments& b = call.backward;
  const TensorView dx = call.tensor({SmallMoe::kTokens, SmallMoe::kHidden}, DType::f32);
  Tensors c;
  tilewise_moe_backward_tensors tensors{};
  tensors.dout = c(b.dout);
  tensors.x = c(b.x), tensors.topk_ids = c(b.topk_ids), tensors.topk_weights = c(b.topk_weights);
  tensors.gate_up = c(b.gate_up), tensors.down = c(b.down);
  tensors.gate_up_bias = c(b.gate_up_bias), tensors.down_bias = c(b.down_bias);
  tensors.dx = c(dx);
  ASSERT_EQ(tilewise_moe_backward(&tensors, nullptr), TILEWISE_OK) << tilewise_last_error();
  for (std::int64_t i = 0; i < dx.numel(); ++i) EXPECT_NEAR(element(dx, i), element(b.dx, i), 1e-5);
}

TEST(MoeC, SavesSumsForGradients) {
  SmallMoe call;
  moe_backward(call.backward);
  const TensorView dx = call.tensor({SmallMoe::kTokens, SmallMoe::kHidden}, DType::f32);
  Tensors c;
  tilewise_moe_options options;
  tilewise_moe_options_init(&options, sizeof options);
  options.save_gate_up = 1;
  tilewise_moe_tensors forward = tensors_of(c, call.forward);
  EXPECT_NE(tilewise_moe(&forward, &options), TILEWISE_OK);
  EXPECT_STREQ(tilewise_last_error(), "gate_up_out: must be given with save_gate_up=1 (got none)");
  forward.gate_up_out = c(call.gate_up_out);
  ASSERT_EQ(tilewise_moe(&forward, &options), TILEWISE_OK) << tilewise_last_error();
  const MoeBackwardArguments& b = call.backward;
  tilewise_moe_backward_tensors tensors{};
  tensors.dout = c(b.dout);
  tensors.x = c(b.x), tensors.topk_ids = c(b.topk_ids), tensors.topk_weights = c(b.topk_weights);
  tensors.gate_up = c(b.gate_up), tensors.down = c(b.down);
  tensors.gate_up_bias = c(b.gate_up_bias), tensors.down_bias = c(b.down_bias);
  tensors.gate_up_out = c(call.gate_up_out), tensors.dx = c(dx);
  ASSERT_EQ(tilewise_moe_backward(&tensors, &options), TILEWISE_OK) << tilewise_last_error();
  for (std::int64_t i = 0; i < dx.numel(); ++i) EXPECT_NEAR(element(dx, i), element(b.dx, i), 1e-5);
}

TEST(MoeC, NamesWhatIsWrong) {
  SmallMoe call;
  Tensors c;
  tilewise_moe_tensors tensors = tensors_of(c, call.forward);
  tilewise_moe_options options;
  tilewise_moe_options_init(&options, sizeof options);
  const auto refused = [&](const std::string& sentence) {
    EXPECT_NE(tilewise_moe(&tensors, &options), TILEWISE_OK);
    EXPECT_EQ(tilewise_last_error(), sentence);
  };
  options.first_expert = -1;
  refused("first_expert: must be >= 0 (got -1)");
  options.first_expert = 0;
  options.gate = "split";
  refused("gate: must be one of none, concatenated, interleaved (got 'split')");
  options.gate = nullptr;
  tensors.down = nullptr;
  refused("down: must be given");
  EXPECT_NE(tilewise_moe(nullptr, nullptr), TILEWISE_OK);
  options.struct_size = 8;
  EXPECT_NE(tilewise_moe(&tensors, &options), TILEWISE_OK);
}

}  // namespace
}  // namespace tilewise
