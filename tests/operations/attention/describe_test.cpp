// describe(): the Problem of a call in every layout, and the sentence for each bad argument.
#include <limits>
#include <utility>

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
  expect_error(ErrorCode::invalid_type, "out: dtype must be bf16 (got f32)", describe_it);
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

struct BadCall {
  const char* sentence;
  void (*change)(SmallCall&);
};

class DescribeForward : public testing::TestWithParam<BadCall> {};

TEST_P(DescribeForward, NamesTheArgument) {
  SmallCall call;
  GetParam().change(call);
  expect_invalid(GetParam().sentence, [&] { (void)describe(call.forward); });
}

INSTANTIATE_TEST_SUITE_P(
    Tensors, DescribeForward,
    testing::Values(
        BadCall{"q: must be given", [](SmallCall& c) { c.forward.q = {}; }},
        BadCall{"k: must be given", [](SmallCall& c) { c.forward.k = {}; }},
        BadCall{"v: must be given", [](SmallCall& c) { c.forward.v = {}; }},
        BadCall{"out: must be given", [](SmallCall& c) { c.forward.out = {}; }},
        BadCall{"q: rank must be 4, four dimensions (got 3, shape [3, 4, 8])",
                [](SmallCall& c) { c.forward.q = c.tensor({3, 4, 8}); }},
        BadCall{"q: rank must be 0 to 6 (got 99)", [](SmallCall& c) { c.forward.q.rank = 99; }},
        BadCall{"k: shape must be [batch_size, seqlen_k, num_heads_k, head_dim] = [2, 5, 2, 8] (got [2, 5, 2, 7])",
                [](SmallCall& c) { c.forward.k = c.tensor({2, 5, 2, 7}); }},
        BadCall{"k: shape must be [batch_size, seqlen_k, num_heads_k, head_dim] = [2, 5, 2, 8] (got [3, 5, 2, 8])",
                [](SmallCall& c) { c.forward.k = c.tensor({3, 5, 2, 8}); }},
        BadCall{"v: shape must be [batch_size, seqlen_k, num_heads_k, head_dim_v] = [2, 5, 2, 6] (got [2, 4, 2, 6])",
                [](SmallCall& c) { c.forward.v = c.tensor({2, 4, 2, 6}); }},
        BadCall{"out: shape must be [batch_size, seqlen_q, num_heads_q, head_dim_v] = [2, 3, 4, 6] (got [2, 3, 4, 8])",
                [](SmallCall& c) { c.forward.out = c.tensor({2, 3, 4, 8}); }},
        BadCall{"softmax_lse: shape must be [batch_size, num_heads_q, seqlen_q] = [2, 4, 3] (got [2, 3, 4])",
                [](SmallCall& c) { c.forward.softmax_lse = c.tensor({2, 3, 4}); }},
        BadCall{"q: shape[1] must be >= 0 (got -3)", [](SmallCall& c) { c.forward.q.shape[1] = -3; }},
        BadCall{"q: the last dimension must be contiguous, stride 1 (got stride 2)",
                [](SmallCall& c) { c.forward.q.strides[3] = 2; }},
        BadCall{"out: the last dimension must be contiguous, stride 1 (got stride 0)",
                [](SmallCall& c) { c.forward.out.strides[3] = 0; }},
        BadCall{"out: an output must not be broadcast (got stride 0 in dimension 0 of size 2)",
                [](SmallCall& c) { c.forward.out.strides[0] = 0; }},
        BadCall{"softmax_lse: an output must not be broadcast (got stride 0 in dimension 1 of size 4)",
                [](SmallCall& c) { c.forward.softmax_lse.strides[1] = 0; }},
        BadCall{"k: data must not be null (shape [2, 5, 2, 8])", [](SmallCall& c) { c.forward.k.data = nullptr; }},
        BadCall{"v: data must be aligned to its element of 4 bytes (got an address 1 past one)",
                [](SmallCall& c) { c.forward.v.data = static_cast<char*>(c.forward.v.data) + 1; }},
        BadCall{"q: must span less than 2^63 bytes and elements (got shape [2, 3, 4, 8], strides "
                "[4611686018427387904, 32, 8, 1])",
                [](SmallCall& c) { c.forward.q.strides[0] = std::int64_t{1} << 62; }},
        BadCall{"q: must span less than 2^63 bytes and elements (got shape [2, 3, 4, 8], strides "
                "[-9223372036854775808, 32, 8, 1])",
                [](SmallCall& c) { c.forward.q.strides[0] = std::numeric_limits<std::int64_t>::min(); }},
        BadCall{"q: must span less than 2^63 bytes and elements (got shape [4611686018427387904, 3, 4, 8], strides "
                "[0, 0, 0, 1])",
                [](SmallCall& c) {
                  c.forward.q.shape[0] = std::int64_t{1} << 62;
                  c.forward.q.strides = {0, 0, 0, 1};
                }}));

/// A call whose q, k and v have these shapes in layout bshd, and an output that is not looked at.
template <std::int64_t... q, std::int64_t... k>
void reshape(SmallCall& c, std::integer_sequence<std::int64_t, q...>, std::integer_sequence<std::int64_t, k...>) {
  c.forward.q = c.tensor({q...});
  c.forward.k = c.forward.v = c.tensor({k...});
}

template <std::int64_t... sizes>
using Sizes = std::integer_sequence<std::int64_t, sizes...>;

INSTANTIATE_TEST_SUITE_P(
    OtherLayouts, DescribeForward,
    testing::Values(
        BadCall{"q: num_heads_q must be a multiple of num_heads_k (got 10 and 7); q, k and v fit layout=bhsd",
                [](SmallCall& c) { reshape(c, Sizes<2, 8, 10, 16>{}, Sizes<2, 4, 7, 16>{}); }},
        BadCall{"k: shape must be [batch_size, seqlen_k, num_heads_k, head_dim] = [10, 2, 4, 16] (got [7, 2, 4, 16]); "
                "q, k and v fit layout=sbhd",
                [](SmallCall& c) { reshape(c, Sizes<10, 2, 8, 16>{}, Sizes<7, 2, 4, 16>{}); }},
        BadCall{"q: num_heads_q must be a multiple of num_heads_k (got 8 and 16); q, k and v fit layout=bshd",
                [](SmallCall& c) {
                  reshape(c, Sizes<2, 8, 16, 4>{}, Sizes<2, 16, 8, 4>{});
                  c.forward.options.layout = Layout::bhsd;
                }},
        BadCall{"q: num_heads_q must be a multiple of num_heads_k (got 6 and 4); q, k and v fit layout=bhsd",
                [](SmallCall& c) { reshape(c, Sizes<2, 2, 6, 16>{}, Sizes<2, 2, 4, 16>{}); }},
        BadCall{"q: rank must be 4, four dimensions (got 3, shape [6, 4, 8]); q, k and v fit layout=thd",
                [](SmallCall& c) {
                  reshape(c, Sizes<6, 4, 8>{}, Sizes<9, 2, 8>{});
                  c.forward.options.cu_seqlens_q = c.lengths({0, 6});
                }},
        BadCall{"q: rank must be 3, [total, heads, dim] (got 4, shape [2, 6, 4, 8]); q, k and v fit layout=bshd",
                [](SmallCall& c) {
                  reshape(c, Sizes<2, 6, 4, 8>{}, Sizes<2, 9, 2, 8>{});
                  c.forward.options.layout = Layout::thd;
                }},
        // Nothing to say where no layout fits.
        BadCall{"q: num_heads_q must be a multiple of num_heads_k (got 4 and 3)",
                [](SmallCall& c) { reshape(c, Sizes<2, 6, 4, 8>{}, Sizes<2, 9, 3, 8>{}); }},
        BadCall{"q: rank must be 4, four dimensions (got 3, shape [6, 4, 8])",
                [](SmallCall& c) { reshape(c, Sizes<6, 4, 8>{}, Sizes<9, 2, 8>{}); }}));

INSTANTIATE_TEST_SUITE_P(
    Options, DescribeForward,
    testing::Values(
        BadCall{"cu_seqlens_q: requires layout=thd",
                [](SmallCall& c) { c.forward.options.cu_seqlens_q = c.lengths({0, 3, 6}); }},
        BadCall{"cu_seqlens_k: requires layout=thd",
                [](SmallCall& c) { c.forward.options.cu_seqlens_k = c.lengths({0, 5, 10}); }},
        BadCall{"max_seqlen_q: requires layout=thd", [](SmallCall& c) { c.forward.options.max_seqlen_q = 3; }},
        BadCall{"max_seqlen_k: requires layout=thd", [](SmallCall& c) { c.forward.options.max_seqlen_k = 3; }},
        BadCall{"bias: rank must be <= 4, [batch_size, num_heads_q, seqlen_q, seqlen_k] (got 5)",
                [](SmallCall& c) { c.forward.options.bias = c.tensor({1, 1, 1, 1, 1}); }},
        BadCall{"bias: dimension 1 must be 1 or num_heads_q = 4 (got 2, shape f32[2, 2, 3, 5])",
                [](SmallCall& c) { c.forward.options.bias = c.tensor({2, 2, 3, 5}); }},
        BadCall{"bias: dimension 0 must be 1 or seqlen_q = 3 (got 5, shape f32[5, 3])",
                [](SmallCall& c) { c.forward.options.bias = c.tensor({5, 3}); }},
        BadCall{"alibi_slopes: shape must be [num_heads_q] = [4] (got [2])",
                [](SmallCall& c) { c.forward.options.alibi_slopes = c.tensor({2}); }},
        BadCall{"alibi_slopes: shape must be [batch_size, num_heads_q] = [2, 4] (got [4, 2])",
                [](SmallCall& c) { c.forward.options.alibi_slopes = c.tensor({4, 2}); }},
        BadCall{"alibi_slopes: shape must be [num_heads_q] = [4] (got [1, 2, 4])",
                [](SmallCall& c) { c.forward.options.alibi_slopes = c.tensor({1, 2, 4}); }},
        BadCall{"sink: shape must be [num_heads_q] = [4] (got [2])",
                [](SmallCall& c) { c.forward.options.sink = c.tensor({2}); }},
        BadCall{"seed_and_offset: shape must be [2] = [2] (got [3])",
                [](SmallCall& c) { c.forward.options.seed_and_offset = c.tensor({3}, DType::i64); }},
        BadCall{"seed_and_offset: excludes seed and offset (got seed 7, offset 0)",
                [](SmallCall& c) {
                  c.forward.options.seed_and_offset = c.tensor({2}, DType::i64);
                  c.forward.options.seed = 7;
                }},
        BadCall{"seqused_q: shape must be [batch_size] = [2] (got [3])",
                [](SmallCall& c) { c.forward.options.seqused_q = c.lengths({1, 1, 1}); }},
        BadCall{"seqused_k: the last dimension must be contiguous, stride 1 (got stride 2)", [](SmallCall& c) {
                  c.forward.options.seqused_k = c.lengths({1, 1, 1, 1});
                  c.forward.options.seqused_k.shape[0] = 2;
                  c.forward.options.seqused_k.strides[0] = 2;
                }}));

class DescribeForwardType : public testing::TestWithParam<BadCall> {};

TEST_P(DescribeForwardType, NamesTheArgument) {
  SmallCall call;
  GetParam().change(call);
  expect_error(ErrorCode::invalid_type, GetParam().sentence, [&] { (void)describe(call.forward); });
}

INSTANTIATE_TEST_SUITE_P(
    All, DescribeForwardType,
    testing::Values(BadCall{"q: dtype must be f32, bf16, f16, f64 or fp8_e4m3 (got i32)",
                            [](SmallCall& c) { c.forward.q.dtype = DType::i32; }},
                    BadCall{"k: dtype must be f32 (got bf16)", [](SmallCall& c) { c.forward.k.dtype = DType::bf16; }},
                    BadCall{"out: dtype must be f32 (got f64)", [](SmallCall& c) { c.forward.out.dtype = DType::f64; }},
                    BadCall{"softmax_lse: dtype must be f32 (got f16)",
                            [](SmallCall& c) { c.forward.softmax_lse.dtype = DType::f16; }},
                    BadCall{"v: must be on cpu, where q is (got cuda:1)",
                            [](SmallCall& c) { c.forward.v.device = {DeviceType::cuda, 1}; }},
                    BadCall{"k: must be on cuda:0, where q is (got cpu)",
                            [](SmallCall& c) { c.forward.q.device = {DeviceType::cuda, 0}; }},
                    BadCall{"bias: dtype must be f32, bool or that of q, f32 (got bf16)",
                            [](SmallCall& c) { c.forward.options.bias = c.tensor({3, 5}, DType::bf16); }},
                    BadCall{"sink: dtype must be f32 or that of q, f32 (got f16)",
                            [](SmallCall& c) { c.forward.options.sink = c.tensor({4}, DType::f16); }},
                    BadCall{"seqused_q: dtype must be i32 (got i64)",
                            [](SmallCall& c) { c.forward.options.seqused_q = c.tensor({2}, DType::i64); }},
                    BadCall{"seed_and_offset: dtype must be i64 (got i32)",
                            [](SmallCall& c) { c.forward.options.seed_and_offset = c.lengths({1, 2}); }}));

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

class DescribePacked : public testing::TestWithParam<BadCall> {};

TEST_P(DescribePacked, NamesTheArgument) {
  SmallCall call = SmallCall::packed();
  GetParam().change(call);
  expect_invalid(GetParam().sentence, [&] { (void)describe(call.forward); });
}

INSTANTIATE_TEST_SUITE_P(
    All, DescribePacked,
    testing::Values(BadCall{"q: rank must be 3, [total, heads, dim] (got 4, shape [1, 3, 4, 8])",
                            [](SmallCall& c) { c.forward.q = c.tensor({1, 3, 4, 8}); }},
                    BadCall{"cu_seqlens_q: must be given with layout=thd",
                            [](SmallCall& c) { c.forward.options.cu_seqlens_q = {}; }},
                    BadCall{"cu_seqlens_k: must be given with layout=thd",
                            [](SmallCall& c) { c.forward.options.cu_seqlens_k = {}; }},
                    BadCall{"cu_seqlens_q: rank must be 1, [batch_size + 1] (got 2, shape [1, 3])",
                            [](SmallCall& c) { c.forward.options.cu_seqlens_q = c.tensor({1, 3}, DType::i32); }},
                    BadCall{"cu_seqlens_q: must have batch_size + 1 >= 1 elements (got 0)",
                            [](SmallCall& c) { c.forward.options.cu_seqlens_q = c.lengths({}); }},
                    BadCall{"cu_seqlens_k: shape must be [batch_size + 1] = [3] (got [2])",
                            [](SmallCall& c) { c.forward.options.cu_seqlens_k = c.lengths({0, 5}); }},
                    BadCall{"softmax_lse: shape must be [num_heads_q, total_q] = [4, 3] (got [3, 4])",
                            [](SmallCall& c) { c.forward.softmax_lse = c.tensor({3, 4}); }},
                    BadCall{"bias: dimension 2 must be 1 or max_seqlen_q = 2 (got 3, shape f32[1, 1, 3, 4])",
                            [](SmallCall& c) { c.forward.options.bias = c.tensor({1, 1, 3, 4}); }}));

class DescribeBackward : public testing::TestWithParam<BadCall> {};

TEST_P(DescribeBackward, NamesTheArgument) {
  SmallCall call;
  GetParam().change(call);
  expect_invalid(GetParam().sentence, [&] { (void)describe(call.backward); });
}

INSTANTIATE_TEST_SUITE_P(
    All, DescribeBackward,
    testing::Values(
        BadCall{"dout: must be given", [](SmallCall& c) { c.backward.dout = {}; }},
        BadCall{"out: must be given", [](SmallCall& c) { c.backward.out = {}; }},
        BadCall{"softmax_lse: must be given", [](SmallCall& c) { c.backward.softmax_lse = {}; }},
        BadCall{"dout: shape must be [batch_size, seqlen_q, num_heads_q, head_dim_v] = [2, 3, 4, 6] (got [2, 3, 4, 8])",
                [](SmallCall& c) { c.backward.dout = c.tensor({2, 3, 4, 8}); }},
        BadCall{"dq: shape must be [batch_size, seqlen_q, num_heads_q, head_dim] = [2, 3, 4, 8] (got [2, 3, 4, 6])",
                [](SmallCall& c) { c.backward.dq = c.tensor({2, 3, 4, 6}); }},
        BadCall{"dk: shape must be [batch_size, seqlen_k, num_heads_k, head_dim] = [2, 5, 2, 8] (got [2, 5, 4, 8])",
                [](SmallCall& c) { c.backward.dk = c.tensor({2, 5, 4, 8}); }},
        BadCall{"dv: an output must not be broadcast (got stride 0 in dimension 2 of size 2)",
                [](SmallCall& c) { c.backward.dv.strides[2] = 0; }},
        BadCall{"dlse: shape must be [batch_size, num_heads_q, seqlen_q] = [2, 4, 3] (got [2, 4, 1])",
                [](SmallCall& c) { c.backward.dlse = c.tensor({2, 4, 1}); }},
        BadCall{"dbias: shape must be [as bias, as bias] = [3, 5] (got [1, 5])",
                [](SmallCall& c) {
                  c.backward.options.bias = c.tensor({3, 5});
                  c.backward.dbias = c.tensor({1, 5});
                }},
        BadCall{"dsink: shape must be [num_heads_q] = [4] (got [1])", [](SmallCall& c) {
                  c.backward.options.sink = c.tensor({4});
                  c.backward.dsink = c.tensor({1});
                }}));

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
