// describe(): the Problem of a call in every layout.
#include "../../core/support.hpp"

namespace tilewise {
namespace {

using test::expect_error;
using test::expect_invalid;
using test::SmallCall;

TEST(Describe, DenseCall) {
  SmallCall call;
  EXPECT_EQ(to_string(describe(call.forward)),
            "attention_forward batch_size=2 seqlen_q=3 seqlen_k=5 num_heads_q=4 num_heads_k=2 head_dim=8 head_dim_v=6");
  EXPECT_EQ(to_string(describe(call.backward)),
            "attention_backward batch_size=2 seqlen_q=3 seqlen_k=5 num_heads_q=4 num_heads_k=2 head_dim=8 "
            "head_dim_v=6");
}

TEST(Describe, Fp8) {
  SmallCall call;  // batch 2, 4 heads on 2
  ForwardArguments f = call.forward;
  f.q.dtype = f.k.dtype = f.v.dtype = DType::fp8_e4m3;
  f.out.dtype = DType::bf16;
  const std::string plain =
      "attention_forward dtype=fp8_e4m3 batch_size=2 seqlen_q=3 seqlen_k=5 num_heads_q=4 num_heads_k=2 head_dim=8 "
      "head_dim_v=6";
  EXPECT_EQ(to_string(describe(f)), plain);
  f.options.q_scale = call.tensor({4});
  f.options.k_scale = call.tensor({2, 2});
  f.options.v_scale_value = 0.5;
  EXPECT_EQ(to_string(describe(f)), plain + " q_scale=head k_scale=batch_head v_scale=tensor");
  f.options.q_scale = call.tensor({1});
  EXPECT_EQ(describe(f).q_scale, ScaleKind::tensor);
  f.out.dtype = DType::f16;
  EXPECT_EQ(describe(f).out_dtype, DType::f16);

  const auto describe_it = [&f] { static_cast<void>(describe(f)); };
  f.out.dtype = DType::f32;
  expect_error(ErrorCode::invalid_type, "out: dtype must be bf16 or f16 (got f32)", describe_it);
  f.out.dtype = DType::bf16;
  f.options.q_scale = call.tensor({2});
  expect_invalid("q_scale: shape must be [num_heads_q] = [4] (got [2])", describe_it);
  f.options.q_scale = call.tensor({2, 4});
  expect_invalid("q_scale: shape must be [batch_size, num_heads_k] = [2, 2] (got [2, 4])", describe_it);
  f.options.q_scale = call.tensor({4}, DType::f16);
  expect_error(ErrorCode::invalid_type, "q_scale: dtype must be f32 (got f16)", describe_it);
  f.options.q_scale = {};
  f.options.q_scale_value = -1.0;
  expect_invalid("q_scale: must be positive and finite in f32 (got -1)", describe_it);
  f.options.q_scale_value = 1.0;
  f.options.q_scale = call.tensor({4});
  expect_invalid("q_scale: must be a tensor or a number (got both)", describe_it);
}

TEST(Describe, NumbersThatAreNoChoice) {
  SmallCall call;
  ForwardArguments wrong = call.forward;
  const auto describe_wrong = [&wrong] { static_cast<void>(describe(wrong)); };
  wrong.options.mask = static_cast<Mask>(77);
  expect_invalid("mask: must be 0 to 1, one of none, causal (got 77)", describe_wrong);
  wrong.options.layout = static_cast<Layout>(77);
  expect_invalid("layout: must be 0 to 3, one of bshd, sbhd, bhsd, thd (got 77)", describe_wrong);
  wrong = call.forward;
  wrong.k.dtype = static_cast<DType>(77);
  expect_error(ErrorCode::invalid_type, "k: dtype is no known one (got number 77)", describe_wrong);
}

TEST(Describe, PackedCall) {
  SmallCall call = SmallCall::packed();
  const std::string shapes =
      " layout=thd batch_size=2 max_seqlen_q=2 max_seqlen_k=4 total_q=3 total_k=5 num_heads_q=4 num_heads_k=2 "
      "head_dim=8 head_dim_v=6";
  EXPECT_EQ(to_string(describe(call.forward)), "attention_forward" + shapes);
  EXPECT_EQ(to_string(describe(call.backward)), "attention_backward" + shapes);
  call.forward.options.max_seqlen_q = 100;
  EXPECT_EQ(describe(call.forward).seqlen_q, 100);
}

TEST(Describe, EveryLayoutSeesTheSameSizes) {
  SmallCall call;
  const auto swap_axes = [](TensorView view, std::size_t a, std::size_t b) {
    std::swap(view.shape[a], view.shape[b]);
    std::swap(view.strides[a], view.strides[b]);
    return view;
  };
  for (const auto& [layout, a, b] : {std::tuple{Layout::sbhd, 0, 1}, std::tuple{Layout::bhsd, 1, 2}}) {
    ForwardArguments arguments = call.forward;
    for (TensorView* view : {&arguments.q, &arguments.k, &arguments.v, &arguments.out}) {
      *view = swap_axes(*view, static_cast<std::size_t>(a), static_cast<std::size_t>(b));
    }
    arguments.options.layout = layout;
    Problem expected = describe(call.forward);
    expected.layout = layout;
    EXPECT_EQ(describe(arguments), expected);
  }
}

TEST(Describe, Options) {
  SmallCall call(DType::bf16);
  AttentionOptions& o = call.forward.options;
  o.mask = Mask::causal;
  o.alignment = Alignment::top_left;
  o.window_left = 7;
  o.softmax_scale = 0.25;
  o.softcap = 30;
  o.dropout_p = 0.5;
  o.seed_and_offset = call.tensor({2}, DType::i64);
  o.bias = call.tensor({4, 1, 5}, DType::f32);
  o.alibi_slopes = call.tensor({2, 4}, DType::f32);
  o.sink = call.tensor({4}, DType::f32);
  o.seqused_q = call.lengths({0, 3});
  o.seqused_k = call.lengths({1, 4});
  o.leftpad_k = call.lengths({4, 1});
  o.batch_invariant = true;
  call.forward.softmax_lse = {};
  EXPECT_EQ(to_string(describe(call.forward)),
            "attention_forward dtype=bf16 batch_size=2 seqlen_q=3 seqlen_k=5 num_heads_q=4 num_heads_k=2 head_dim=8 "
            "head_dim_v=6 mask=causal alignment=top_left window_left=7 softmax_scale=0.25 softcap=30 "
            "bias=f32[1,h,1,k] alibi_slopes=[b,h] sink=1 dropout_p=0.5 seed_tensor=1 seqused_q=1 seqused_k=1 "
            "leftpad_k=1 softmax_lse=0 batch_invariant=1");
}

TEST(Describe, GradientsThatAreAskedFor) {
  SmallCall call;
  BackwardArguments& b = call.backward;
  b.options.bias = call.tensor({1, 4, 3, 5});
  b.options.sink = call.tensor({4});
  b.dbias = call.tensor({1, 4, 3, 5});
  b.dsink = call.tensor({4});
  b.dlse = call.tensor({2, 4, 3});
  b.dk = {};
  b.options.deterministic = true;
  EXPECT_EQ(to_string(describe(b)),
            "attention_backward batch_size=2 seqlen_q=3 seqlen_k=5 num_heads_q=4 num_heads_k=2 head_dim=8 head_dim_v=6 "
            "bias=f32[1,h,q,k] sink=1 dlse=1 dk=0 dbias=1 dsink=1 deterministic=1");
}

TEST(Describe, EmptyTensorsNeedNoData) {
  ForwardArguments arguments;
  arguments.q = arguments.out = TensorView(nullptr, DType::f32, {2, 0, 4, 8});
  arguments.k = arguments.v = TensorView(nullptr, DType::f32, {2, 0, 4, 8});
  EXPECT_EQ(to_string(describe(arguments)),
            "attention_forward batch_size=2 seqlen_q=0 num_heads_q=4 head_dim=8 softmax_lse=0");
}

TEST(Describe, StridesThatAreAllowed) {
  SmallCall call;
  call.forward.k.strides[0] = 0;                           // one key sequence for the whole batch
  call.forward.v.strides[1] = -call.forward.v.strides[1];  // read backwards
  call.forward.softmax_lse.strides = {1, 6, 2};
  EXPECT_NO_THROW((void)describe(call.forward));
  call.forward.q.shape[3] = call.forward.k.shape[3] = 1;  // one element: its stride is never used
  call.forward.q.strides[3] = 99;
  EXPECT_NO_THROW((void)describe(call.forward));
}

TEST(Describe, StridesOfEmptyTensorsMeanNothing) {
  for (const bool no_batch : {true, false}) {  // else no queries
    SmallCall call;
    BackwardArguments& b = call.backward;
    std::vector<TensorView*> empty{&b.q, &b.out, &b.dout, &b.dq};
    if (no_batch) empty.insert(empty.end(), {&b.k, &b.v, &b.dk, &b.dv});
    for (TensorView* view : empty) {
      view->shape[no_batch ? 0 : 1] = 0;
      view->strides = {0, 3, 0, 0};
      view->data = static_cast<char*>(view->data) + 1;
    }
    b.softmax_lse.shape[no_batch ? 0 : 2] = 0;
    const Problem problem = describe(b);
    EXPECT_EQ(no_batch ? problem.batch_size : problem.seqlen_q, 0);
    EXPECT_NO_THROW(attention_backward(b));
  }
}

TEST(Describe, F64CarriesItsStatisticsInF64) {
  SmallCall call(DType::f64);
  ForwardArguments& f = call.forward;
  expect_error(ErrorCode::invalid_type, "softmax_lse: dtype must be f64 (got f32)", [&] { (void)describe(f); });
  f.softmax_lse = call.tensor({2, 4, 3}, DType::f64);
  f.options.alibi_slopes = call.tensor({4}, DType::f32);
  expect_error(ErrorCode::invalid_type, "alibi_slopes: dtype must be f64 (got f32)", [&] { (void)describe(f); });
  f.options.alibi_slopes = call.tensor({4}, DType::f64);
  f.options.bias = call.tensor({3, 5}, DType::f64);
  f.options.sink = call.tensor({4}, DType::f64);
  EXPECT_EQ(to_string(describe(f)),
            "attention_forward dtype=f64 batch_size=2 seqlen_q=3 seqlen_k=5 num_heads_q=4 num_heads_k=2 head_dim=8 "
            "head_dim_v=6 bias=query[1,1,q,k] alibi_slopes=[h] sink=query");
  f.options.bias.dtype = f.options.sink.dtype = DType::f32;  // widened as for every other dtype
  EXPECT_EQ(describe(f).bias, BiasKind::f32);
  EXPECT_EQ(describe(f).sink, SinkKind::f32);
}

TEST(Describe, SinkAndItsGradientShareADtype) {
  SmallCall call;
  BackwardArguments& b = call.backward;
  for (TensorView* view : {&b.q, &b.k, &b.v, &b.out, &b.dout, &b.dq, &b.dk, &b.dv}) view->dtype = DType::bf16;
  b.options.sink = call.tensor({4}, DType::bf16);
  b.dsink = call.tensor({4}, DType::f32);
  expect_error(ErrorCode::invalid_type, "dsink: dtype must be bf16 (got f32)", [&] { (void)describe(b); });
  b.dsink.dtype = DType::bf16;
  EXPECT_EQ(describe(b).sink, SinkKind::query);
  b.options.sink.dtype = DType::f16;
  expect_error(ErrorCode::invalid_type, "sink: dtype must be f32 or that of q, bf16 (got f16)",
               [&] { (void)describe(b); });
}

TEST(Describe, OtherDevicesNeedMaxSeqlen) {
  SmallCall call = SmallCall::packed();
  ForwardArguments& f = call.forward;
  for (TensorView* view :
       {&f.q, &f.k, &f.v, &f.out, &f.softmax_lse, &f.options.cu_seqlens_q, &f.options.cu_seqlens_k}) {
    view->device = {DeviceType::cuda, 0};
  }
  expect_invalid("max_seqlen_q: must be given, since the host can't read cu_seqlens_q", [&] { (void)describe(f); });
  f.options.max_seqlen_q = 2;
  f.options.max_seqlen_k = 4;
  EXPECT_EQ(to_string(describe(f)),
            "attention_forward device=cuda layout=thd batch_size=2 max_seqlen_q=2 max_seqlen_k=4 total_q=3 total_k=5 "
            "num_heads_q=4 num_heads_k=2 head_dim=8 head_dim_v=6 unaligned=1");
}

}  // namespace
}  // namespace tilewise
