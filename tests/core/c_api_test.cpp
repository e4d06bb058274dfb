// The C interface: results, statuses, sentences, versions of the options, and bad input.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "support.hpp"
#include "tilewise/tilewise.h"

namespace tilewise {
namespace {

using test::SmallCall;

/// Bytes of options that the first version had.
constexpr std::size_t kFirstOptions =
    offsetof(tilewise_attention_options, implementation) + sizeof(tilewise_attention_options::implementation);

/// A SmallCall through C's eyes.
class CApi : public testing::Test {
 protected:
  CApi() {
    EXPECT_EQ(tilewise_attention_options_init(&options_, sizeof options_), TILEWISE_OK);
    forward_ = {dl(call_.forward.q), dl(call_.forward.k), dl(call_.forward.v), dl(call_.forward.out),
                dl(call_.forward.softmax_lse)};
    const BackwardArguments& b = call_.backward;
    backward_ = {dl(b.dout),        nullptr,  dl(b.q),  dl(b.k),  dl(b.v), dl(b.out),
                 dl(b.softmax_lse), dl(b.dq), dl(b.dk), dl(b.dv), nullptr, nullptr};
  }

  const DLTensor* dl(const TensorView& view) {
    tensors_.push_back(std::make_unique<Tensor>(Tensor{view, {}}));
    to_dlpack(tensors_.back()->view, &tensors_.back()->dl);
    return &tensors_.back()->dl;
  }

  /// The call failed with this status and sentence.
  static void expect(tilewise_status expected, const std::string& sentence, tilewise_status status) {
    EXPECT_EQ(status, expected);
    EXPECT_EQ(tilewise_last_error(), sentence);
  }

  SmallCall call_;
  tilewise_attention_options options_;
  tilewise_forward_tensors forward_;
  tilewise_backward_tensors backward_;

 private:
  /// A DLTensor's shape points into its view.
  struct Tensor {
    TensorView view;
    DLTensor dl;
  };
  std::vector<std::unique_ptr<Tensor>> tensors_;
};

std::string take(char* text) {
  std::string copy = text;
  tilewise_free_text(text);
  return copy;
}

TEST_F(CApi, ComputesWhatTheCppInterfaceComputes) {
  const auto fill = [](const TensorView& view) {
    for (std::int64_t i = 0; i < view.numel(); ++i) static_cast<float*>(view.data)[i] = static_cast<float>(i % 7) - 3;
  };
  fill(call_.forward.q), fill(call_.forward.k), fill(call_.forward.v), fill(call_.backward.dout);
  const auto copy = [](const TensorView& view) {
    const auto* data = static_cast<const float*>(view.data);
    return std::vector<float>(data, data + view.numel());
  };
  attention_forward(call_.forward);
  attention_backward(call_.backward);
  const std::vector<float> out = copy(call_.forward.out), dq = copy(call_.backward.dq);
  std::fill_n(static_cast<float*>(call_.forward.out.data), call_.forward.out.numel(), 99.0f);
  std::fill_n(static_cast<float*>(call_.backward.dq.data), call_.backward.dq.numel(), 99.0f);
  ASSERT_EQ(tilewise_attention_forward(&forward_, nullptr), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ(copy(call_.forward.out), out);
  ASSERT_EQ(tilewise_attention_backward(&backward_, &options_), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ(copy(call_.backward.dq), dq);
}

TEST_F(CApi, EveryOptionArrives) {
  options_.mask = TILEWISE_MASK_CAUSAL;
  options_.alignment = TILEWISE_ALIGNMENT_TOP_LEFT;
  options_.has_softmax_scale = 1;
  options_.softmax_scale = -2;
  options_.softcap = 3;
  options_.window_left = 4;
  options_.dropout_p = 0.5;
  options_.seed_and_offset = dl(call_.tensor({2}, DType::i64));
  options_.bias = dl(call_.tensor({3, 5}));
  options_.alibi_slopes = dl(call_.tensor({4}));
  options_.sink = dl(call_.tensor({4}));
  options_.seqused_q = dl(call_.lengths({1, 2}));
  options_.seqused_k = dl(call_.lengths({1, 2}));
  options_.leftpad_k = dl(call_.lengths({1, 2}));
  options_.deterministic = options_.batch_invariant = 1;
  char* text = nullptr;
  ASSERT_EQ(tilewise_describe_backward(&backward_, &options_, &text), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ(take(text),
            "attention_backward batch_size=2 seqlen_q=3 seqlen_k=5 num_heads_q=4 num_heads_k=2 head_dim=8 head_dim_v=6 "
            "mask=causal alignment=top_left window_left=4 softmax_scale=-2 softcap=3 bias=f32[1,1,q,k] "
            "alibi_slopes=[h] sink=1 dropout_p=0.5 seed_tensor=1 seqused_q=1 seqused_k=1 leftpad_k=1 deterministic=1 "
            "batch_invariant=1");
}

TEST_F(CApi, ScalesArrive) {
  const auto fp8 = [this](std::initializer_list<std::int64_t> shape) {
    return dl(call_.tensor(shape, DType::fp8_e4m3));
  };
  const tilewise_forward_tensors tensors{fp8({2, 3, 4, 8}), fp8({2, 5, 2, 8}), fp8({2, 5, 2, 6}),
                                         dl(call_.tensor({2, 3, 4, 6}, DType::f16)), nullptr};
  options_.q_scale = dl(call_.tensor({4}));
  options_.k_scale = dl(call_.tensor({2, 2}));
  options_.v_scale_value = 0.5;
  char* text = nullptr;
  ASSERT_EQ(tilewise_describe_forward(&tensors, &options_, &text), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ(take(text),
            "attention_forward dtype=fp8_e4m3 out_dtype=f16 batch_size=2 seqlen_q=3 seqlen_k=5 num_heads_q=4 "
            "num_heads_k=2 head_dim=8 head_dim_v=6 q_scale=head k_scale=batch_head v_scale=tensor softmax_lse=0");
  options_.v_scale_value = -2.0;
  expect(TILEWISE_INVALID_ARGUMENT, "v_scale: must be positive and finite in f32 (got -2)",
         tilewise_describe_forward(&tensors, &options_, &text));
}

TEST_F(CApi, PackedOptionsArrive) {
  SmallCall packed = SmallCall::packed();
  const tilewise_forward_tensors tensors{dl(packed.forward.q), dl(packed.forward.k), dl(packed.forward.v),
                                         dl(packed.forward.out), nullptr};
  options_.layout = TILEWISE_LAYOUT_THD;
  options_.cu_seqlens_q = dl(packed.forward.options.cu_seqlens_q);
  options_.cu_seqlens_k = dl(packed.forward.options.cu_seqlens_k);
  options_.max_seqlen_q = 9;
  char* text = nullptr;
  ASSERT_EQ(tilewise_describe_forward(&tensors, &options_, &text), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ(take(text),
            "attention_forward layout=thd batch_size=2 max_seqlen_q=9 max_seqlen_k=4 total_q=3 total_k=5 num_heads_q=4 "
            "num_heads_k=2 head_dim=8 head_dim_v=6 softmax_lse=0");
}

TEST_F(CApi, Plans) {
  options_.implementation = "reference";
  tilewise_plan* plan = nullptr;
  ASSERT_EQ(tilewise_plan_forward(&forward_, &options_, &plan), TILEWISE_OK) << tilewise_last_error();
  const char* name = nullptr;
  EXPECT_EQ(tilewise_plan_implementation(plan, &name), TILEWISE_OK);
  EXPECT_STREQ(name, "reference");
  std::size_t size = 1;
  EXPECT_EQ(tilewise_plan_workspace_size(plan, &size), TILEWISE_OK);
  EXPECT_EQ(tilewise_plan_run_forward(plan, &forward_, &options_, nullptr, nullptr), TILEWISE_OK);
  EXPECT_EQ(tilewise_plan_run_backward(plan, &backward_, &options_, nullptr, nullptr), TILEWISE_INVALID_ARGUMENT);
  tilewise_plan_destroy(plan);

  ASSERT_EQ(tilewise_plan_backward(&backward_, &options_, &plan), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ(tilewise_plan_run_backward(plan, &backward_, &options_, nullptr, nullptr), TILEWISE_OK);
  tilewise_plan_destroy(plan);

  ASSERT_EQ(tilewise_plan_problem("attention_forward seqlen_q=4 head_dim=8", nullptr, &plan), TILEWISE_OK);
  tilewise_plan_destroy(plan);
  tilewise_plan_destroy(nullptr);
}

TEST_F(CApi, Texts) {
  char* text = nullptr;
  ASSERT_EQ(tilewise_parse_problem("attention_forward head_dim=8 window_right=0 seqlen_q=4", &text), TILEWISE_OK);
  EXPECT_EQ(take(text), "attention_forward seqlen_q=4 head_dim=8 mask=causal");
  ASSERT_EQ(tilewise_explain("attention_forward seqlen_q=4 head_dim=8", "reference", &text), TILEWISE_OK);
  EXPECT_NE(take(text).find("reference"), std::string::npos);
  tilewise_free_text(nullptr);
  expect(TILEWISE_INVALID_ARGUMENT, "head_dim: must be given (got no such word)",
         tilewise_parse_problem("attention_forward seqlen_q=4", &text));
  expect(TILEWISE_INVALID_ARGUMENT, "problem: must not be null", tilewise_parse_problem(nullptr, &text));
  expect(TILEWISE_INVALID_ARGUMENT, "normal_form: must not be null", tilewise_parse_problem("", nullptr));
  expect(TILEWISE_INVALID_ARGUMENT, "table: must not be null", tilewise_explain("", nullptr, nullptr));
  EXPECT_EQ(tilewise_version(), version());
}

TEST_F(CApi, StatusesTellTheKindOfMistake) {
  options_.window_left = -7;
  expect(TILEWISE_INVALID_ARGUMENT, "window_left: must be -1 (unbounded) or 0 to 2147483647 (got -7)",
         tilewise_attention_forward(&forward_, &options_));
  options_.window_left = -1;
  options_.sink = dl(call_.tensor({4}, DType::f16));
  expect(TILEWISE_INVALID_TYPE, "sink: dtype must be f32 (got f16)", tilewise_attention_forward(&forward_, &options_));
  options_.sink = nullptr;
  tilewise_plan* plan = nullptr;
  EXPECT_EQ(tilewise_plan_problem("attention_forward device=hip seqlen_q=4 head_dim=8", nullptr, &plan),
            TILEWISE_UNSUPPORTED);
  EXPECT_EQ(plan, nullptr);
  options_.implementation = "quick";
  EXPECT_EQ(tilewise_attention_forward(&forward_, &options_), TILEWISE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(tilewise_last_error()).find("implementation: must name an implementation: "), 0u);
}

TEST_F(CApi, NullPointers) {
  expect(TILEWISE_INVALID_ARGUMENT, "tensors: must not be null", tilewise_attention_forward(nullptr, &options_));
  expect(TILEWISE_INVALID_ARGUMENT, "tensors: must not be null", tilewise_attention_backward(nullptr, nullptr));
  forward_.k = nullptr;
  expect(TILEWISE_INVALID_ARGUMENT, "k: must be given", tilewise_attention_forward(&forward_, &options_));
  expect(TILEWISE_INVALID_ARGUMENT, "options: must not be null", tilewise_attention_options_init(nullptr, 8));
  expect(TILEWISE_INVALID_ARGUMENT, "plan: must not be null", tilewise_plan_forward(&forward_, &options_, nullptr));
  expect(TILEWISE_INVALID_ARGUMENT, "plan: must not be null",
         tilewise_plan_run_forward(nullptr, &forward_, &options_, nullptr, nullptr));
  std::size_t size = 0;
  expect(TILEWISE_INVALID_ARGUMENT, "plan: must not be null", tilewise_plan_workspace_size(nullptr, &size));
  expect(TILEWISE_INVALID_ARGUMENT, "num_threads: must not be null", tilewise_get_num_threads(nullptr));
}

TEST_F(CApi, EnumerationsAreChecked) {
  options_.layout = 4;
  expect(TILEWISE_INVALID_ARGUMENT, "layout: must be 0 to 3, one of bshd, sbhd, bhsd, thd (got 4)",
         tilewise_attention_forward(&forward_, &options_));
  options_.layout = 0;
  options_.mask = -1;
  expect(TILEWISE_INVALID_ARGUMENT, "mask: must be 0 to 1, one of none, causal (got -1)",
         tilewise_attention_forward(&forward_, &options_));
  options_.mask = 0;
  options_.alignment = 2;
  expect(TILEWISE_INVALID_ARGUMENT, "alignment: must be 0 to 1, one of bottom_right, top_left (got 2)",
         tilewise_attention_forward(&forward_, &options_));
}

TEST_F(CApi, StructSizesAreChecked) {
  const std::string sentence = "options: struct_size must be " + std::to_string(kFirstOptions) + " to " +
                               std::to_string(sizeof options_) + ", as tilewise_attention_options_init() sets it (got ";
  expect(TILEWISE_INVALID_ARGUMENT, sentence + "8)", tilewise_attention_options_init(&options_, 8));
  tilewise_attention_options raw{};
  expect(TILEWISE_INVALID_ARGUMENT, sentence + "0)", tilewise_attention_forward(&forward_, &raw));
  raw.struct_size = sizeof raw + 8;
  expect(TILEWISE_INVALID_ARGUMENT, sentence + std::to_string(sizeof raw + 8) + ")",
         tilewise_attention_forward(&forward_, &raw));
}

TEST_F(CApi, ClearsRowsOfNoSequenceWhereAsked) {
  constexpr std::int64_t kRows = 5, kDim = 4, kUsed = 3;
  std::vector<float> q(kRows * kDim, 1.0f), k = q, v(kRows * kDim, 2.0f), out, lse;
  std::int32_t ends[] = {0, kUsed};
  const auto rows = [](float* data) { return TensorView(data, DType::f32, {kRows, 1, kDim}); };
  const auto attend = [&](std::size_t known) {
    out.assign(kRows * kDim, 9.0f), lse.assign(kRows, 9.0f);
    forward_ = {dl(rows(q.data())), dl(rows(k.data())), dl(rows(v.data())), dl(rows(out.data())),
                dl(TensorView(lse.data(), DType::f32, {1, kRows}))};
    EXPECT_EQ(tilewise_attention_options_init(&options_, known), TILEWISE_OK);
    options_.layout = TILEWISE_LAYOUT_THD;
    options_.cu_seqlens_q = options_.cu_seqlens_k = dl(TensorView(ends, DType::i32, {2}));
    options_.clear_rest = 1;
    EXPECT_EQ(tilewise_attention_forward(&forward_, &options_), TILEWISE_OK) << tilewise_last_error();
    EXPECT_EQ(out[kUsed * kDim - 1], 2.0f);
    return std::pair(out[kUsed * kDim], lse[kUsed]);
  };
  EXPECT_EQ(attend(sizeof options_), std::pair(0.0f, -std::numeric_limits<float>::infinity()));
  EXPECT_EQ(attend(kFirstOptions), std::pair(9.0f, 9.0f));  // of callers who don't know of it
}

TEST_F(CApi, FunctionsOfScores) {
  constexpr std::int64_t kKeys = 3, kDim = 2;
  float q[kDim] = {0, 0}, k[kKeys * kDim] = {}, v[kKeys * kDim] = {1, 1, 2, 2, 4, 4}, out[kDim] = {};
  std::int64_t documents[kKeys] = {7, 5, 7};
  float biases[kKeys] = {0.0f, 0.0f, std::log(3.0f)};
  forward_.q = dl(TensorView(q, DType::f32, {1, 1, 1, kDim}));
  forward_.k = dl(TensorView(k, DType::f32, {1, kKeys, 1, kDim}));
  forward_.v = dl(TensorView(v, DType::f32, {1, kKeys, 1, kDim}));
  forward_.out = dl(TensorView(out, DType::f32, {1, 1, 1, kDim}));
  forward_.softmax_lse = nullptr;
  EXPECT_EQ(tilewise_attention_options_init(&options_, sizeof options_), TILEWISE_OK);
  options_.score_mod = "score + table1[kv_idx]";
  options_.mask_mod = "table0[kv_idx] == 7";
  const DLTensor* tables[] = {dl(TensorView(documents, DType::i64, {kKeys})),
                              dl(TensorView(biases, DType::f32, {kKeys}))};
  options_.tables = tables;
  options_.table_count = 2;
  EXPECT_EQ(tilewise_attention_forward(&forward_, &options_), TILEWISE_OK) << tilewise_last_error();
  EXPECT_NEAR(out[0], (1.0f + 3.0f * 4.0f) / 4.0f, 1e-6f);
  options_.tables = nullptr;
  expect(TILEWISE_INVALID_ARGUMENT, "tables: must be table_count of them (got 2 and NULL)",
         tilewise_attention_forward(&forward_, &options_));
}

TEST_F(CApi, Merge) {
  float a[2] = {1, 2}, b[2] = {3, 4}, zero = 0, out[2] = {};
  const DLTensor* outs[] = {dl(TensorView(a, DType::f32, {1, 1, 1, 2})), dl(TensorView(b, DType::f32, {1, 1, 1, 2}))};
  const DLTensor* lses[] = {dl(TensorView(&zero, DType::f32, {1, 1, 1})), dl(TensorView(&zero, DType::f32, {1, 1, 1}))};
  const DLTensor* result = dl(TensorView(out, DType::f32, {1, 1, 1, 2}));
  ASSERT_EQ(tilewise_merge(outs, lses, 2, nullptr, result, nullptr, TILEWISE_LAYOUT_BSHD), TILEWISE_OK);
  EXPECT_FLOAT_EQ(out[0], 2.0f);
  EXPECT_FLOAT_EQ(out[1], 3.0f);
  expect(TILEWISE_INVALID_ARGUMENT, "outs: must hold at least one partial result (got none)",
         tilewise_merge(nullptr, nullptr, 0, nullptr, result, nullptr, TILEWISE_LAYOUT_BSHD));
  expect(TILEWISE_INVALID_ARGUMENT, "outs: must not be null",
         tilewise_merge(nullptr, lses, 2, nullptr, result, nullptr, TILEWISE_LAYOUT_BSHD));
  lses[1] = nullptr;
  expect(TILEWISE_INVALID_ARGUMENT, "lses[1]: must not be null",
         tilewise_merge(outs, lses, 2, nullptr, result, nullptr, TILEWISE_LAYOUT_BSHD));
}

TEST_F(CApi, MergeBackward) {
  float a[2] = {1, 2}, b[2] = {3, 4}, zero = 0, dout[2] = {1, 1}, da[2] = {}, db[2] = {}, dlse[2] = {};
  const auto rows = [](float* data) { return TensorView(data, DType::f32, {1, 1, 1, 2}); };
  const auto lse = [](float* data) { return TensorView(data, DType::f32, {1, 1, 1}); };
  const DLTensor *outs[] = {dl(rows(a)), dl(rows(b))}, *lses[] = {dl(lse(&zero)), dl(lse(&zero))};
  const DLTensor *douts[] = {dl(rows(da)), dl(rows(db))}, *dlses[] = {dl(lse(dlse)), dl(lse(dlse + 1))};
  tilewise_merge_backward_tensors tensors{};
  tensors.dout = dl(rows(dout));
  tensors.outs = outs;
  tensors.lses = lses;
  tensors.count = 2;
  tensors.douts = douts;
  tensors.dlses = dlses;
  ASSERT_EQ(tilewise_merge_backward(&tensors, TILEWISE_LAYOUT_BSHD), TILEWISE_OK);
  EXPECT_FLOAT_EQ(da[0], 0.5f);
  EXPECT_FLOAT_EQ(db[1], 0.5f);
  EXPECT_FLOAT_EQ(dlse[0], 0.5f * (3.0f - 5.0f));  // weight times (its dot - their mean)
  EXPECT_FLOAT_EQ(dlse[1], 0.5f * (7.0f - 5.0f));
  tensors.douts = tensors.dlses = nullptr;
  expect(TILEWISE_INVALID_ARGUMENT, "douts: at least one of douts, dlses and dsink must be given (got none)",
         tilewise_merge_backward(&tensors, TILEWISE_LAYOUT_BSHD));
  expect(TILEWISE_INVALID_ARGUMENT, "tensors: must not be null",
         tilewise_merge_backward(nullptr, TILEWISE_LAYOUT_BSHD));
  // One tensor of all parts.
  float all[4] = {1, 2, 3, 4}, none[2] = {}, out[2] = {};
  const DLTensor* stacked[] = {dl(TensorView(all, DType::f32, {2, 1, 1, 1, 2}))};
  const DLTensor* statistics[] = {dl(TensorView(none, DType::f32, {2, 1, 1, 1}))};
  ASSERT_EQ(tilewise_merge(stacked, statistics, 1, nullptr, dl(rows(out)), nullptr, TILEWISE_LAYOUT_BSHD), TILEWISE_OK);
  EXPECT_FLOAT_EQ(out[0], 2.0f);
}

TEST_F(CApi, Route) {
  float logits[8] = {1, 3, 2, -1, 0, 0, 5, 5}, bias[4] = {0, 0, 0, 9}, weights[4] = {}, dweights[4] = {1, 0, 0, 1};
  float dlogits[8] = {};
  std::int64_t ids[4] = {};
  tilewise_route_tensors tensors{};
  tensors.logits = dl(TensorView(logits, DType::f32, {2, 4}));
  tensors.topk_ids = dl(TensorView(ids, DType::i64, {2, 2}));
  tensors.topk_weights = dl(TensorView(weights, DType::f32, {2, 2}));
  ASSERT_EQ(tilewise_route(&tensors, nullptr), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ((std::array{ids[0], ids[1], ids[2], ids[3]}), (std::array<std::int64_t, 4>{1, 2, 2, 3}));
  tilewise_route_options options;
  ASSERT_EQ(tilewise_route_options_init(&options, sizeof options), TILEWISE_OK);
  options.score = "identity";
  options.normalise = "sum_plus_epsilon";
  tensors.bias = dl(TensorView(bias, DType::f32, {4}));
  ASSERT_EQ(tilewise_route(&tensors, &options), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ((std::array{ids[0], ids[1]}), (std::array<std::int64_t, 2>{3, 1}));
  EXPECT_FLOAT_EQ(weights[0], -0.5f);
  EXPECT_FLOAT_EQ(weights[1], 1.5f);
  tilewise_route_backward_tensors gradients{};
  gradients.logits = tensors.logits;
  gradients.topk_ids = tensors.topk_ids;
  gradients.dtopk_weights = dl(TensorView(dweights, DType::f32, {2, 2}));
  gradients.dlogits = dl(TensorView(dlogits, DType::f32, {2, 4}));
  ASSERT_EQ(tilewise_route_backward(&gradients, &options), TILEWISE_OK) << tilewise_last_error();
  EXPECT_FLOAT_EQ(dlogits[3], 0.75f);  // of x / (x + y), y / (x + y)^2 with x = -1 and y = 3
  EXPECT_EQ(dlogits[0], 0.0f);
  options.n_group = 2;
  expect(TILEWISE_INVALID_ARGUMENT, "n_group: belongs to route (got it in route_backward)",
         tilewise_route_backward(&gradients, &options));
  options.n_group = 3;
  expect(TILEWISE_INVALID_ARGUMENT, "n_group: must divide num_experts, 4 (got 3)", tilewise_route(&tensors, &options));
  options.score = "relu";
  expect(TILEWISE_INVALID_ARGUMENT, "score: must be one of softmax, sigmoid, sqrt_softplus, identity (got 'relu')",
         tilewise_route(&tensors, &options));
  expect(TILEWISE_INVALID_ARGUMENT, "tensors: must not be null", tilewise_route(nullptr, nullptr));
}

/// Bytes stand for narrow elements, two of e2m1 in one.
TEST_F(CApi, Quantize) {
  float x[4] = {1, -6, 0.5f, 4}, back[4] = {};
  std::uint8_t elements[2] = {}, scales[1] = {};
  const DLTensor* numbers = dl(TensorView(x, DType::f32, {1, 4}));
  const DLTensor* pairs = dl(TensorView(elements, DType::u8, {1, 2}));
  const DLTensor* scale = dl(TensorView(scales, DType::u8, {1, 1}));
  ASSERT_EQ(tilewise_quantize(numbers, pairs, scale, nullptr, "mxfp4", 0), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ(scales[0], 127);
  EXPECT_EQ(elements[0], 0xF2);
  EXPECT_EQ(elements[1], 0x61);
  const DLTensor* out = dl(TensorView(back, DType::f32, {1, 4}));
  ASSERT_EQ(tilewise_dequantize(pairs, scale, nullptr, out, "mxfp4"), TILEWISE_OK) << tilewise_last_error();
  EXPECT_TRUE(std::equal(x, x + 4, back));
  expect(TILEWISE_INVALID_ARGUMENT, "format: must not be null",
         tilewise_quantize(numbers, pairs, scale, nullptr, nullptr, 0));
  expect(TILEWISE_INVALID_ARGUMENT, "x: must be given", tilewise_quantize(nullptr, pairs, scale, nullptr, "mxfp4", 0));
  expect(TILEWISE_INVALID_ARGUMENT,
         "power_of_two: must be false with format=mxfp4, which has one rule for its scales (got true)",
         tilewise_quantize(numbers, pairs, scale, nullptr, "mxfp4", 1));
  expect(TILEWISE_INVALID_ARGUMENT, "global_scale: must be given with format=nvfp4 (got none)",
         tilewise_dequantize(pairs, scale, nullptr, out, "nvfp4"));
}

TEST_F(CApi, Linear) {
  float x[4] = {1, 2, 3, 4}, w[4] = {1, 0, -2, 1}, bias[2] = {10, 0}, out[4] = {}, dout[4] = {1, 0, 0, 1}, dx[4] = {};
  const auto matrix = [&](float* data) { return dl(TensorView(data, DType::f32, {2, 2})); };
  tilewise_linear_tensors tensors{};
  tensors.x = matrix(x);
  tensors.w = matrix(w);
  tensors.bias = dl(TensorView(bias, DType::f32, {2}));
  tensors.out = matrix(out);
  ASSERT_EQ(tilewise_linear(&tensors, nullptr), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ((std::array{out[0], out[1], out[2], out[3]}), (std::array{11.0f, 0.0f, 13.0f, -2.0f}));
  tilewise_linear_options options;
  ASSERT_EQ(tilewise_linear_options_init(&options, sizeof options), TILEWISE_OK);
  options.activation = "relu";
  ASSERT_EQ(tilewise_linear(&tensors, &options), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ(out[3], 0.0f);
  tilewise_linear_backward_tensors gradients{};
  gradients.dout = matrix(dout);
  gradients.x = tensors.x;
  gradients.w = tensors.w;
  gradients.bias = tensors.bias;
  gradients.dx = matrix(dx);
  ASSERT_EQ(tilewise_linear_backward(&gradients, &options), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ((std::array{dx[0], dx[1], dx[2], dx[3]}), (std::array{1.0f, 0.0f, 0.0f, 0.0f}));
  options.activation = "exp";
  expect(TILEWISE_INVALID_ARGUMENT,
         "activation: must be one of identity, silu, gelu, gelu_tanh, relu, relu_squared, swiglu_oai (got 'exp')",
         tilewise_linear(&tensors, &options));
  options.activation = nullptr;
  options.x_format = "mxfp8";
  expect(TILEWISE_INVALID_ARGUMENT, "x_format: belongs to linear (got mxfp8 in linear_backward)",
         tilewise_linear_backward(&gradients, &options));
  expect(TILEWISE_INVALID_ARGUMENT, "tensors: must not be null", tilewise_linear(nullptr, nullptr));
}

/// Bytes stand for narrow elements; a row of experts by counts.
TEST_F(CApi, GroupedLinear) {
  float x[2] = {1, 3}, out[2] = {};
  std::uint8_t w[3] = {0x38, 0x40, 0x48}, scale[3] = {127, 127, 128};  // 1, 2 and 4; 1, 1 and 2
  std::int64_t counts[3] = {1, 0, 1};
  tilewise_linear_tensors tensors{};
  tensors.x = dl(TensorView(x, DType::f32, {2, 1}));
  tensors.w = dl(TensorView(w, DType::u8, {3, 1, 1}));
  tensors.w_scale = dl(TensorView(scale, DType::u8, {3, 1, 1}));
  tensors.counts = dl(TensorView(counts, DType::i64, {3}));
  tensors.out = dl(TensorView(out, DType::f32, {2, 1}));
  tilewise_linear_options options;
  ASSERT_EQ(tilewise_linear_options_init(&options, sizeof options), TILEWISE_OK);
  options.w_format = "mxfp8";
  ASSERT_EQ(tilewise_linear(&tensors, &options), TILEWISE_OK) << tilewise_last_error();
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], 24.0f);
}

TEST_F(CApi, Threads) {
  int before = 0, after = 0;
  ASSERT_EQ(tilewise_get_num_threads(&before), TILEWISE_OK);
  EXPECT_EQ(tilewise_set_num_threads(3), TILEWISE_OK);
  EXPECT_EQ(tilewise_get_num_threads(&after), TILEWISE_OK);
  EXPECT_EQ(after, 3);
  EXPECT_EQ(tilewise_set_num_threads(0), TILEWISE_OK);
  EXPECT_EQ(tilewise_get_num_threads(&after), TILEWISE_OK);
  EXPECT_EQ(after, before);
  EXPECT_EQ(tilewise_set_num_threads(-1), TILEWISE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tilewise_last_error()).find("-1"), std::string::npos);
}

TEST_F(CApi, ErrorsBelongToTheirThread) {
  (void)tilewise_attention_forward(nullptr, nullptr);
  std::thread([] { EXPECT_STREQ(tilewise_last_error(), ""); }).join();
  EXPECT_STREQ(tilewise_last_error(), "tensors: must not be null");
}

}  // namespace
}  // namespace tilewise
