// describe(): the sentence for each bad argument.
#include <limits>

#include "../../core/support.hpp"
#include "core/foreign_dtype.hpp"

namespace tilewise {
namespace {

using test::expect_error;
using test::expect_invalid;
using test::SmallCall;

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
        BadCall{"q: rank must be 4, [batch_size, seqlen_q, num_heads_q, head_dim] (got 3, shape [3, 4, 8])",
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
        BadCall{"q: the last dimension must be contiguous, stride 1 (got stride 2); q.contiguous() in torch or "
                "numpy.ascontiguousarray(q) makes it so",
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
        BadCall{"q: rank must be 3, [total_q, num_heads_q, head_dim] (got 4, shape [10, 2, 8, 16]); q, k and v fit "
                "layout=sbhd",
                [](SmallCall& c) {
                  reshape(c, Sizes<10, 2, 8, 16>{}, Sizes<7, 2, 4, 16>{});
                  c.forward.options.layout = Layout::thd;
                }},
        BadCall{"q: num_heads_q must be a multiple of num_heads_k (got 8 and 16); q, k and v fit layout=bshd",
                [](SmallCall& c) {
                  reshape(c, Sizes<2, 8, 16, 4>{}, Sizes<2, 16, 8, 4>{});
                  c.forward.options.layout = Layout::bhsd;
                }},
        BadCall{"q: num_heads_q must be a multiple of num_heads_k (got 6 and 4); q, k and v fit layout=bhsd",
                [](SmallCall& c) { reshape(c, Sizes<2, 2, 6, 16>{}, Sizes<2, 2, 4, 16>{}); }},
        BadCall{"q: rank must be 4, [batch_size, seqlen_q, num_heads_q, head_dim] (got 3, shape [6, 4, 8]); q, k and v "
                "fit layout=thd",
                [](SmallCall& c) {
                  reshape(c, Sizes<6, 4, 8>{}, Sizes<9, 2, 8>{});
                  c.forward.options.cu_seqlens_q = c.lengths({0, 6});
                }},
        BadCall{"q: rank must be 3, [total_q, num_heads_q, head_dim] (got 4, shape [2, 6, 4, 8]); q, k and v fit "
                "layout=bshd",
                [](SmallCall& c) {
                  reshape(c, Sizes<2, 6, 4, 8>{}, Sizes<2, 9, 2, 8>{});
                  c.forward.options.layout = Layout::thd;
                }},
        // Batch sizes that differ are what is wrong, though dimensions that change places would fit.
        BadCall{"k: shape must be [batch_size, seqlen_k, num_heads_k, head_dim] = [2, 6, 2, 16] (got [3, 6, 2, 16])",
                [](SmallCall& c) { reshape(c, Sizes<2, 6, 4, 16>{}, Sizes<3, 6, 2, 16>{}); }},
        BadCall{"k: shape must be [batch_size, num_heads_k, seqlen_k, head_dim] = [2, 4, 6, 16] (got [4, 4, 6, 16])",
                [](SmallCall& c) {
                  reshape(c, Sizes<2, 4, 6, 16>{}, Sizes<4, 4, 6, 16>{});
                  c.forward.options.layout = Layout::bhsd;
                }},
        // Nothing to say where no layout fits.
        BadCall{"q: num_heads_q must be a multiple of num_heads_k (got 4 and 3)",
                [](SmallCall& c) { reshape(c, Sizes<2, 6, 4, 8>{}, Sizes<2, 9, 3, 8>{}); }},
        BadCall{"q: rank must be 4, [batch_size, seqlen_q, num_heads_q, head_dim] (got 3, shape [6, 4, 8])",
                [](SmallCall& c) { reshape(c, Sizes<6, 4, 8>{}, Sizes<9, 2, 8>{}); }}));

INSTANTIATE_TEST_SUITE_P(
    Options, DescribeForward,
    testing::Values(
        BadCall{"cu_seqlens_q: requires layout=thd (got layout=bshd)",
                [](SmallCall& c) { c.forward.options.cu_seqlens_q = c.lengths({0, 3, 6}); }},
        BadCall{"cu_seqlens_k: requires layout=thd (got layout=bshd)",
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
        BadCall{"seqused_k: the last dimension must be contiguous, stride 1 (got stride 2); seqused_k.contiguous() in "
                "torch or numpy.ascontiguousarray(seqused_k) makes it so",
                [](SmallCall& c) {
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
                    BadCall{"q: dtype must be bf16, f16 or fp8_e4m3 on cuda (got i32)",
                            [](SmallCall& c) {
                              c.forward.q.dtype = DType::i32;
                              c.forward.q.device = {DeviceType::cuda, 0};
                            }},
                    BadCall{"q: dtype must be f32, bf16, f16, f64 or fp8_e4m3 (got complex64)",
                            [](SmallCall& c) { c.forward.q.dtype = *core::foreign_dtype("complex64"); }},
                    BadCall{"v: dtype must be f32 (got i16)",
                            [](SmallCall& c) { c.forward.v.dtype = *core::foreign_dtype("i16"); }},
                    BadCall{"bias: dtype must be bool or that of q, f32 (got float8_e5m2fnuz)",
                            [](SmallCall& c) {
                              c.forward.options.bias = c.tensor({3, 5}, DType::f32);
                              c.forward.options.bias.dtype = *core::foreign_dtype("float8_e5m2fnuz");
                            }},
                    BadCall{"q: dtype must be f32, bf16, f16, f64 or fp8_e4m3 (got unknown)",
                            [](SmallCall& c) { c.forward.q.dtype = static_cast<DType>(200); }},
                    BadCall{"k: dtype is no known one (got number 200)",
                            [](SmallCall& c) { c.forward.k.dtype = static_cast<DType>(200); }},
                    BadCall{"k: dtype must be f32 (got bf16)", [](SmallCall& c) { c.forward.k.dtype = DType::bf16; }},
                    BadCall{"out: dtype must be f32 (got f64)", [](SmallCall& c) { c.forward.out.dtype = DType::f64; }},
                    BadCall{"softmax_lse: dtype must be f32 (got f16)",
                            [](SmallCall& c) { c.forward.softmax_lse.dtype = DType::f16; }},
                    BadCall{"v: must be on cpu, where q is (got cuda:1)",
                            [](SmallCall& c) { c.forward.v.device = {DeviceType::cuda, 1}; }},
                    BadCall{"k: must be on cuda:0, where q is (got cpu)",
                            [](SmallCall& c) { c.forward.q.device = {DeviceType::cuda, 0}; }},
                    BadCall{"bias: dtype must be bool or that of q, f32 (got bf16)",
                            [](SmallCall& c) { c.forward.options.bias = c.tensor({3, 5}, DType::bf16); }},
                    BadCall{"sink: dtype must be f32 (got f16)",
                            [](SmallCall& c) { c.forward.options.sink = c.tensor({4}, DType::f16); }},
                    BadCall{"seqused_q: dtype must be i32 (got i64)",
                            [](SmallCall& c) { c.forward.options.seqused_q = c.tensor({2}, DType::i64); }},
                    BadCall{"seed_and_offset: dtype must be i64 (got i32)",
                            [](SmallCall& c) { c.forward.options.seed_and_offset = c.lengths({1, 2}); }}));

class DescribePacked : public testing::TestWithParam<BadCall> {};

TEST_P(DescribePacked, NamesTheArgument) {
  SmallCall call = SmallCall::packed();
  GetParam().change(call);
  expect_invalid(GetParam().sentence, [&] { (void)describe(call.forward); });
}

INSTANTIATE_TEST_SUITE_P(
    All, DescribePacked,
    testing::Values(BadCall{"q: rank must be 3, [total_q, num_heads_q, head_dim] (got 4, shape [1, 3, 4, 8])",
                            [](SmallCall& c) { c.forward.q = c.tensor({1, 3, 4, 8}); }},
                    BadCall{"cu_seqlens_q: must be given with layout=thd (got none)",
                            [](SmallCall& c) { c.forward.options.cu_seqlens_q = {}; }},
                    BadCall{"cu_seqlens_k: must be given with layout=thd (got none)",
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
        BadCall{"dbias: shape must be [seqlen_q, seqlen_k] = [3, 5] (got [1, 5])",
                [](SmallCall& c) {
                  c.backward.options.bias = c.tensor({3, 5});
                  c.backward.dbias = c.tensor({1, 5});
                }},
        BadCall{"dsink: shape must be [num_heads_q] = [4] (got [1])", [](SmallCall& c) {
                  c.backward.options.sink = c.tensor({4});
                  c.backward.dsink = c.tensor({1});
                }}));

}  // namespace
}  // namespace tilewise
