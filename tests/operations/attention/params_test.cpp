// Kernel parameters: every layout seen as [batch, seq, head, dim], folded masks, biases.
#include "../../core/support.hpp"
#include "operations/attention/call.hpp"

namespace tilewise {
namespace {

using test::SmallCall;

device::AttentionParams params_of(const ForwardArguments& arguments) {
  const operations::attention::Call call = operations::attention::call_of(arguments);
  return operations::attention::make_params(call, operations::attention::describe(call));
}
device::AttentionParams params_of(const BackwardArguments& arguments) {
  const operations::attention::Call call = operations::attention::call_of(arguments);
  return operations::attention::make_params(call, operations::attention::describe(call));
}

void expect_strides(const device::Tensor4& tensor, std::int64_t batch, std::int64_t seq, std::int64_t head) {
  EXPECT_EQ(tensor.batch_stride, batch);
  EXPECT_EQ(tensor.seq_stride, seq);
  EXPECT_EQ(tensor.head_stride, head);
}

TEST(Params, DenseLayouts) {
  SmallCall call;
  const device::AttentionParams bshd = params_of(call.forward);
  expect_strides(bshd.q, 96, 32, 8);
  expect_strides(bshd.v, 60, 12, 6);
  EXPECT_EQ(bshd.q.data, call.forward.q.data);
  EXPECT_EQ(bshd.head_dim_v, 6);
  EXPECT_EQ(bshd.softmax_lse.batch_stride, 12);
  EXPECT_EQ(bshd.softmax_lse.head_stride, 3);
  EXPECT_EQ(bshd.softmax_lse.seq_stride, 1);

  ForwardArguments f;
  f.q = f.out = call.tensor({3, 2, 4, 8});
  f.k = f.v = call.tensor({5, 2, 2, 8});
  f.options.layout = Layout::sbhd;
  expect_strides(params_of(f).q, 32, 64, 8);
  f.q = f.out = call.tensor({2, 4, 3, 8});
  f.k = f.v = call.tensor({2, 2, 5, 8});
  f.options.layout = Layout::bhsd;
  const device::AttentionParams bhsd = params_of(f);
  expect_strides(bhsd.q, 96, 8, 24);
  EXPECT_EQ(bhsd.seqlen_k, 5);
  EXPECT_EQ(bhsd.softmax_lse.data, nullptr);
}

TEST(Params, Packed) {
  SmallCall call = SmallCall::packed();
  const device::AttentionParams params = params_of(call.forward);
  expect_strides(params.k, 0, 16, 8);
  EXPECT_EQ(params.batch_size, 2);
  EXPECT_EQ(params.seqlen_k, 4);
  EXPECT_EQ(params.total_k, 5);
  EXPECT_EQ(params.cu_seqlens_k[2], 5);
  EXPECT_EQ(params.softmax_lse.batch_stride, 0);
  EXPECT_EQ(params.softmax_lse.head_stride, 3);
  EXPECT_EQ(params.softmax_lse.seq_stride, 1);
}

TEST(Params, ScalesOfHeads) {
  SmallCall call;
  ForwardArguments f = call.forward;
  f.q.dtype = f.k.dtype = f.v.dtype = DType::fp8_e4m3;
  f.out.dtype = DType::bf16;
  f.options.q_scale = call.tensor({2, 2});
  f.options.k_scale = call.tensor({2});
  f.options.v_scale_value = 0.5;
  const device::AttentionParams params = params_of(f);
  EXPECT_EQ(params.q_scale.index(1, 3), 3);  // [1, 1]: two query heads share a key head
  EXPECT_EQ(params.k_scale.index(1, 1), 1);
  EXPECT_EQ(params.v_scale.of(1, 1), 0.5f);
  EXPECT_EQ(params_of(call.forward).q_scale.of(0, 3), 1.0f);
}

TEST(Params, CausalFoldsIntoTheWindow) {
  SmallCall call;
  EXPECT_EQ(params_of(call.forward).window_right, -1);
  call.forward.options.mask = Mask::causal;
  call.forward.options.alignment = Alignment::top_left;
  call.forward.options.window_left = 2;
  const device::AttentionParams params = params_of(call.forward);
  EXPECT_EQ(params.window_left, 2);
  EXPECT_EQ(params.window_right, 0);
  EXPECT_EQ(params.top_left, 1);
}

TEST(Params, BiasBroadcastsWithStrideZero) {
  SmallCall call(DType::bf16);
  call.forward.options.bias = call.tensor({4, 1, 5}, DType::bf16);
  const device::AttentionParams params = params_of(call.forward);
  EXPECT_EQ(params.bias_type, device::kBiasBf16);
  EXPECT_EQ(params.bias.batch_stride, 0);
  EXPECT_EQ(params.bias.head_stride, 5);
  EXPECT_EQ(params.bias.query_stride, 0);
  EXPECT_EQ(params.bias.key_stride, 1);
  call.forward.options.bias = call.tensor({}, DType::boolean);
  EXPECT_EQ(params_of(call.forward).bias_type, device::kBiasBool);
  call.forward.options.bias = call.tensor({5}, DType::f32);
  EXPECT_EQ(params_of(call.forward).bias_type, device::kBiasF32);
  SmallCall half(DType::f16);
  half.forward.options.bias = half.tensor({5}, DType::f16);
  EXPECT_EQ(params_of(half.forward).bias_type, device::kBiasF16);
}

TEST(Params, Dropout) {
  SmallCall call;
  call.forward.options.dropout_p = 0.2;
  call.forward.options.seed = 1;
  call.forward.options.offset = 2;
  device::AttentionParams params = params_of(call.forward);
  EXPECT_EQ(params.dropout_threshold, 13107u);
  EXPECT_EQ(params.dropout_scale, static_cast<float>(65536.0 / (65536 - 13107)));
  EXPECT_EQ(params.seed, 1u);
  EXPECT_EQ(params.offset, 2u);
  EXPECT_EQ(params.seed_and_offset, nullptr);
  call.forward.options.seed = call.forward.options.offset = 0;
  call.forward.options.seed_and_offset = call.tensor({2}, DType::i64);
  params = params_of(call.forward);
  EXPECT_EQ(params.seed_and_offset, call.forward.options.seed_and_offset.data);
  EXPECT_EQ(params.seed_and_offset_stride, 1);
}

TEST(Params, HeadOptionsAndLengths) {
  SmallCall call;
  AttentionOptions& o = call.forward.options;
  o.alibi_slopes = call.tensor({2, 4});
  o.sink = call.tensor({4});
  o.seqused_q = call.lengths({1, 2});
  o.leftpad_k = call.lengths({0, 3});
  o.softmax_scale = -0.5;
  o.softcap = 20;
  device::AttentionParams params = params_of(call.forward);
  EXPECT_EQ(params.alibi_batch_stride, 4);
  EXPECT_EQ(params.alibi_head_stride, 1);
  EXPECT_EQ(params.sink.data, o.sink.data);
  EXPECT_EQ(params.sink.stride, 1);
  EXPECT_EQ(params.sink.type, device::kBiasF32);
  EXPECT_EQ(params.seqused_q[1], 2);
  EXPECT_EQ(params.seqused_k, nullptr);
  EXPECT_EQ(params.leftpad_k[1], 3);
  EXPECT_EQ(params.softmax_scale, -0.5f);
  EXPECT_EQ(params.softcap, 20.0f);
  o.alibi_slopes = call.tensor({4});
  params = params_of(call.forward);
  EXPECT_EQ(params.alibi_batch_stride, 0);
  EXPECT_EQ(params.alibi_head_stride, 1);
}

TEST(Params, SinkAndBiasSayTheirTypes) {
  SmallCall call;
  ForwardArguments& f = call.forward;
  const auto types = [&](DType dtype) {
    for (TensorView* view : {&f.q, &f.k, &f.v, &f.out}) view->dtype = dtype;
    f.softmax_lse = {};
    f.options.bias = call.tensor({3, 5}, dtype);
    f.options.sink = call.tensor({4}, dtype);
    const device::AttentionParams params = params_of(f);
    EXPECT_EQ(params.bias_type, params.sink.type);
    return params.sink.type;
  };
  EXPECT_EQ(types(DType::f32), device::kBiasF32);
  EXPECT_EQ(types(DType::bf16), device::kBiasBf16);
  EXPECT_EQ(types(DType::f16), device::kBiasF16);
  EXPECT_EQ(types(DType::f64), device::kBiasF64);
  f.options.sink = {};
  EXPECT_EQ(params_of(f).sink.type, device::kBiasNone);
}

TEST(Params, Gradients) {
  SmallCall call;
  BackwardArguments& b = call.backward;
  b.options.bias = call.tensor({4, 1, 5});
  b.dbias = call.tensor({4, 1, 5});
  b.options.sink = call.tensor({4});
  b.dsink = call.tensor({4});
  b.dlse = call.tensor({2, 4, 3});
  b.dv = {};
  b.options.deterministic = true;
  const device::AttentionParams params = params_of(b);
  EXPECT_EQ(params.dout.data, b.dout.data);
  EXPECT_EQ(params.dq.data, b.dq.data);
  EXPECT_EQ(params.dv.data, nullptr);
  EXPECT_EQ(params.dlse.head_stride, 3);
  EXPECT_EQ(params.dbias.head_stride, 5);
  EXPECT_EQ(params.dbias.query_stride, 0);
  EXPECT_EQ(params.dbias_shape[0], 1);
  EXPECT_EQ(params.dbias_shape[1], 4);
  EXPECT_EQ(params.dbias_shape[2], 1);
  EXPECT_EQ(params.dbias_shape[3], 5);
  EXPECT_EQ(params.dsink.data, b.dsink.data);
  EXPECT_EQ(params.deterministic, 1);
}

}  // namespace
}  // namespace tilewise
