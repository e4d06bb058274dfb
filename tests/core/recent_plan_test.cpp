// The remembered plan serves exactly the calls that describe to its Problem: every change of a call that matters, of
// tensors, options or overrides, must not find it.
#include "core/recent_plan.hpp"

#include "operations/attention/attention.hpp"

#include <functional>
#include <vector>

#include "support.hpp"

namespace tilewise {
namespace {

using test::SmallCall;

core::PlanState plan_for(const Problem& problem) {
  return std::make_shared<const Plan::State>(Plan::State{problem, nullptr, nullptr});
}

class Remembered : public ::testing::Test {
 protected:
  Remembered() {
    recent_.remember(operations::attention::call_of(call_.forward), overrides_, forward_plan_);
    recent_backward_.remember(operations::attention::call_of(call_.backward), overrides_, backward_plan_);
  }

  [[nodiscard]] core::PlanState find(const ForwardArguments& forward) const {
    return recent_.find(operations::attention::call_of(forward), overrides_);
  }
  [[nodiscard]] core::PlanState find(const BackwardArguments& backward) const {
    return recent_backward_.find(operations::attention::call_of(backward), overrides_);
  }

  SmallCall call_;
  core::Overrides overrides_;
  core::PlanState forward_plan_ = plan_for(describe(call_.forward)),
                  backward_plan_ = plan_for(describe(call_.backward));
  core::RecentPlan<operations::attention::LastCall> recent_, recent_backward_;
};

TEST_F(Remembered, ServesTheSameKindOfTensorsElsewhere) {
  EXPECT_EQ(find(call_.forward), forward_plan_);
  EXPECT_EQ(find(call_.backward), backward_plan_);
  const SmallCall other;
  EXPECT_EQ(find(other.forward), forward_plan_);
  EXPECT_EQ(find(other.backward), backward_plan_);
  ForwardArguments seeded = call_.forward;
  seeded.options.seed = 7, seeded.options.offset = 9;  // the kernel's parameters alone
  EXPECT_EQ(find(seeded), forward_plan_);
}

TEST_F(Remembered, EveryOptionMatters) {
  using Change = std::function<void(AttentionOptions&)>;
  const TensorView row = call_.tensor({4}, DType::f32), lengths = call_.lengths({1, 1}),
                   seed = call_.tensor({2}, DType::i64);
  const std::vector<Change> changes{
      [](auto& o) { o.layout = Layout::sbhd; },
      [](auto& o) { o.mask = Mask::causal; },
      [](auto& o) { o.alignment = Alignment::top_left; },
      [](auto& o) { o.window_left = 1; },
      [](auto& o) { o.window_right = 1; },
      [](auto& o) { o.softmax_scale = 0.25; },
      [](auto& o) { o.softcap = 2.0; },
      [](auto& o) { o.dropout_p = 0.5; },
      [&](auto& o) { o.seed_and_offset = seed; },
      [&](auto& o) { o.bias = row; },
      [&](auto& o) { o.alibi_slopes = row; },
      [&](auto& o) { o.sink = row; },
      [&](auto& o) { o.cu_seqlens_q = lengths; },
      [&](auto& o) { o.cu_seqlens_k = lengths; },
      [](auto& o) { o.max_seqlen_q = 3; },
      [](auto& o) { o.max_seqlen_k = 5; },
      [&](auto& o) { o.seqused_q = lengths; },
      [&](auto& o) { o.seqused_k = lengths; },
      [&](auto& o) { o.leftpad_k = lengths; },
      [](auto& o) { o.deterministic = true; },
      [](auto& o) { o.batch_invariant = true; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    ForwardArguments forward = call_.forward;
    changes[i](forward.options);
    EXPECT_EQ(find(forward), nullptr) << "change " << i;
    BackwardArguments backward = call_.backward;
    changes[i](backward.options);
    EXPECT_EQ(find(backward), nullptr) << "change " << i;
  }
}

TEST_F(Remembered, EveryTensorMatters) {
  using Change = std::function<void(TensorView&)>;
  const std::vector<Change> changes{
      [](TensorView& view) { view = {}; },
      [](TensorView& view) { view.data = nullptr; },
      [](TensorView& view) { view.data = static_cast<std::byte*>(view.data) + 8; },
      [](TensorView& view) { view.dtype = DType::bf16; },
      [](TensorView& view) { view.device.type = DeviceType::cuda; },
      [](TensorView& view) { view.device.index = 1; },
      [](TensorView& view) { --view.rank; },
      [](TensorView& view) { --view.shape[0]; },
      [](TensorView& view) { --view.shape[static_cast<std::size_t>(view.rank) - 1]; },
      [](TensorView& view) { ++view.strides[0]; },
      [](TensorView& view) { ++view.strides[static_cast<std::size_t>(view.rank) - 1]; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    for (TensorView ForwardArguments::* tensor : {&ForwardArguments::q, &ForwardArguments::k, &ForwardArguments::v,
                                                  &ForwardArguments::out, &ForwardArguments::softmax_lse}) {
      ForwardArguments forward = call_.forward;
      changes[i](forward.*tensor);
      EXPECT_EQ(find(forward), nullptr) << "change " << i;
    }
    for (TensorView BackwardArguments::* tensor :
         {&BackwardArguments::dout, &BackwardArguments::dlse, &BackwardArguments::q, &BackwardArguments::k,
          &BackwardArguments::v, &BackwardArguments::out, &BackwardArguments::softmax_lse, &BackwardArguments::dq,
          &BackwardArguments::dk, &BackwardArguments::dv}) {
      BackwardArguments backward = call_.backward;
      if (!(backward.*tensor).defined()) backward.*tensor = call_.backward.softmax_lse;
      const bool given = (call_.backward.*tensor).defined();
      if (given) changes[i](backward.*tensor);
      EXPECT_EQ(find(backward), nullptr) << "change " << i;
    }
  }
  BackwardArguments more = call_.backward;
  more.dbias = more.softmax_lse;
  EXPECT_EQ(find(more), nullptr);
  more = call_.backward;
  more.dsink = more.softmax_lse;
  EXPECT_EQ(find(more), nullptr);
}

TEST_F(Remembered, OverridesMatter) {
  const operations::attention::Call call = operations::attention::call_of(call_.forward);
  EXPECT_EQ(recent_.find(call, {"reference", {}, "implementation"}), nullptr);
  EXPECT_EQ(recent_.find(call, {{}, "cpu.*", "TILEWISE_FORCE"}), nullptr);
  recent_.remember(call, {"reference", {}, "implementation"}, backward_plan_);
  EXPECT_EQ(recent_.find(call, {"reference", {}, "implementation"}), backward_plan_);
  EXPECT_EQ(recent_.find(call, {}), nullptr);
}

TEST_F(Remembered, ValuesAreLookedAt) {
  SmallCall packed = SmallCall::packed();  // of 3 and 5 rows, up to 2 and 4 of a sequence
  const core::PlanState plan = plan_for(describe(packed.forward));
  recent_.remember(operations::attention::call_of(packed.forward), overrides_, plan);
  EXPECT_EQ(find(packed.forward), plan);
  ForwardArguments other = packed.forward;
  other.options.cu_seqlens_q = packed.lengths({0, 0, 3});
  EXPECT_EQ(find(other), nullptr) << "a longer sequence";
  other.options.cu_seqlens_q = packed.lengths({0, 1, 3});
  EXPECT_EQ(find(other), plan);
  other.options.cu_seqlens_q = packed.lengths({0, 1, 9});
  EXPECT_THROW((void)find(other), Error);
  EXPECT_EQ(find(call_.forward), nullptr);

  ForwardArguments used = call_.forward;
  used.options.seqused_k = call_.lengths({1, 5});
  recent_.remember(operations::attention::call_of(used), overrides_, plan);
  EXPECT_EQ(find(used), plan);
  used.options.seqused_k = call_.lengths({1, 6});
  EXPECT_THROW((void)find(used), Error);

  ForwardArguments seeded = call_.forward;
  seeded.options.seed_and_offset = call_.tensor({2}, DType::i64);
  recent_.remember(operations::attention::call_of(seeded), overrides_, plan);
  EXPECT_EQ(find(seeded), plan);
  seeded.options.seed = 7;
  EXPECT_EQ(find(seeded), nullptr);

  ForwardArguments scaled = call_.forward;
  scaled.options.k_scale_value = 0.5;
  recent_.remember(operations::attention::call_of(scaled), overrides_, plan);
  scaled.options.k_scale_value = 2.0;
  EXPECT_EQ(find(scaled), plan);
  scaled.options.k_scale_value = -2.0;
  EXPECT_EQ(find(scaled), nullptr);
}

TEST_F(Remembered, TablesMatter) {
  ForwardArguments call = call_.forward;
  call.options.score_mod = "score+table0[h]";
  call.options.tables = {call_.tensor({4})};
  EXPECT_EQ(find(call), nullptr);
  recent_.remember(operations::attention::call_of(call), overrides_, backward_plan_);
  EXPECT_EQ(find(call), backward_plan_);
  EXPECT_EQ(find(call_.forward), nullptr);
  ForwardArguments other = call;
  other.options.tables = {call_.tensor({4})};  // elsewhere: the kernel's parameters alone
  EXPECT_EQ(find(other), backward_plan_);
  for (const TensorView& table :
       {call_.tensor({3}), call_.tensor({4}, DType::bf16), call_.tensor({4, 1}), TensorView{}}) {
    other.options.tables = {table};
    EXPECT_EQ(find(other), nullptr) << describe(table);
  }
  other.options.tables = {call.options.tables[0], call.options.tables[0]};
  EXPECT_EQ(find(other), nullptr);
  other = call;
  other.options.score_mod = "score-table0[h]";
  EXPECT_EQ(find(other), nullptr);
  other = call;
  other.options.mask_mod = "h<=1";
  EXPECT_EQ(find(other), nullptr);
}

TEST_F(Remembered, GradientsOfTablesMatter) {
  BackwardArguments call = call_.backward;
  call.options.score_mod = "score+table0[h]";
  call.options.tables = {call_.tensor({4})};
  call.options.dtables = {call_.tensor({4})};
  recent_backward_.remember(operations::attention::call_of(call), overrides_, forward_plan_);
  EXPECT_EQ(find(call), forward_plan_);
  for (const std::vector<TensorView>& dtables : {std::vector<TensorView>(), std::vector(1, TensorView())}) {
    BackwardArguments other = call;
    other.options.dtables = dtables;
    EXPECT_EQ(find(other), nullptr);
  }
}

TEST_F(Remembered, BlockMasksMatter) {
  ForwardArguments call = call_.forward;
  call.options.block_mask = {call_.tensor({1, 1, 1}, DType::i32), call_.tensor({1, 1, 1, 1}, DType::i32)};
  EXPECT_EQ(find(call), nullptr);
  recent_.remember(operations::attention::call_of(call), overrides_, backward_plan_);
  EXPECT_EQ(find(call), backward_plan_);
  EXPECT_EQ(find(call_.forward), nullptr);
  ForwardArguments other = call;
  other.options.block_mask[1] = call_.tensor({1, 1, 1, 2}, DType::i32);
  EXPECT_EQ(find(other), nullptr);
  other = call;
  other.options.block_mask.insert(other.options.block_mask.end(), call.options.block_mask.begin(),
                                  call.options.block_mask.end());
  EXPECT_EQ(find(other), nullptr);
  other = call;
  other.options.block_rows = 16;
  EXPECT_EQ(find(other), nullptr);
  other = call;
  other.options.block_keys = 16;
  EXPECT_EQ(find(other), nullptr);
  recent_.remember(operations::attention::call_of(call_.forward), overrides_, forward_plan_);
  EXPECT_EQ(find(call), nullptr);
  EXPECT_EQ(find(call_.forward), forward_plan_);
}

TEST(RecentPlan, KnowsNothingAtFirst) {
  const SmallCall call;
  EXPECT_EQ(core::RecentPlan<operations::attention::LastCall>().find(operations::attention::call_of(call.forward), {}),
            nullptr);
}

}  // namespace
}  // namespace tilewise
