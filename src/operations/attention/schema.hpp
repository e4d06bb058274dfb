// Attention as a schema: what its problem says, which tensors its two calls have, and where C has both. The tables that
// functions of scores look up are beside it: how many they are, and of which shapes, is a word of the problem.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include "operations/attention/fields.hpp"
#include "operations/attention/names.hpp"
#include "operations/attention/rules.hpp"
#include "operations/block_mask_word.hpp"
#include "operations/schema.hpp"
#include "operations/selected_keys.hpp"
#include "operations/table_shapes.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/c/attention.h"

namespace tilewise::operations::attention {

using P = AttentionProblem;
using Forward = ForwardArguments;
using Backward = BackwardArguments;
using O = AttentionOptions;
using C = tilewise_attention_options;
using CForward = tilewise_forward_tensors;
using CBackward = tilewise_backward_tensors;
using Dimension = schema::Dimension<P>;
using core::Access, core::kRequired, schema::argument, schema::field, schema::is_packed;

// The limits of sizes are validate()'s, which looks at them together.
inline constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
inline constexpr Dimension kBatch{.name = "batch_size", .size = &P::batch_size, .most = kAny, .unpacked_only = true};
inline constexpr Dimension kSequences{.name = "batch_size", .size = &P::batch_size, .most = kAny};
inline constexpr Dimension kEnds{.name = "batch_size + 1", .size = &P::batch_size, .most = kAny, .beyond = 1};
inline constexpr Dimension kQueries{.name = "seqlen_q",
                                    .size = &P::seqlen_q,
                                    .most = kAny,
                                    .packed_name = "total_q",
                                    .packed_size = &P::total_q,
                                    .index = "row"};
inline constexpr Dimension kKeys{.name = "seqlen_k",
                                 .size = &P::seqlen_k,
                                 .most = kAny,
                                 .packed_name = "total_k",
                                 .packed_size = &P::total_k,
                                 .index = "row"};
inline constexpr Dimension kHeadsQ{.name = "num_heads_q", .size = &P::num_heads_q, .most = kAny, .index = "head"};
inline constexpr Dimension kHeadsK{.name = "num_heads_k", .size = &P::num_heads_k, .most = kAny, .index = "head"};
inline constexpr Dimension kDim{.name = "head_dim", .size = &P::head_dim, .most = kAny, .index = "dim"};
inline constexpr Dimension kDimV{.name = "head_dim_v", .size = &P::head_dim_v, .most = kAny, .index = "dim"};
inline constexpr Dimension kTwo{.name = "2", .follows = [](const P&) { return std::int64_t{2}; }};
inline constexpr Dimension kSlopedSequences{
    .name = "batch_size",
    .follows = [](const P& p) { return p.batch_size; },
    .exists = [](const P& p) { return p.alibi_slopes == AlibiKind::per_batch_head; }};

// Of a bias: 1 where it is broadcast.
inline constexpr Dimension kBiasBatch{
    .name = "batch_size", .index = "batch", .follows = [](const P& p) { return bias_shape(p)[0]; }};
inline constexpr Dimension kBiasHeads{
    .name = "num_heads_q", .index = "head", .follows = [](const P& p) { return bias_shape(p)[1]; }};
inline constexpr Dimension kBiasQueries{
    .name = "seqlen_q", .packed_name = "max_seqlen_q", .index = "query", .follows = [](const P& p) {
      return bias_shape(p)[2];
    }};
inline constexpr Dimension kBiasKeys{
    .name = "seqlen_k", .packed_name = "max_seqlen_k", .index = "key", .follows = [](const P& p) {
      return bias_shape(p)[3];
    }};

// Of scales, whose dimensions their kind says.
template <ScaleKind P::* scale, ScaleKind kind, const Dimension& dimension>
inline constexpr Dimension kScaled{
    .name = dimension.name, .size = dimension.size, .most = kAny, .exists = [](const P& p) {
      return p.*scale == kind;
    }};

template <const Dimension&... dimensions>
inline constexpr schema::Dimensions<P> kOf{schema::Dimensions<P>::Order::written, {&dimensions...}};
template <const Dimension& rows, const Dimension& heads, const Dimension& dim>
inline constexpr schema::Dimensions<P> kRows{schema::Dimensions<P>::Order::layout, {&kBatch, &rows, &heads, &dim}};
inline constexpr auto kLse = kOf<kBatch, kHeadsQ, kQueries>;
template <ScaleKind P::* scale, const Dimension& heads>
inline constexpr auto kScales =
    kOf<kScaled<scale, ScaleKind::batch_head, kSequences>, kScaled<scale, ScaleKind::batch_head, kHeadsK>,
        kScaled<scale, ScaleKind::head, heads>>;

template <DType dtype>
inline constexpr schema::Type<P> kFixed = schema::kFixed<P, dtype>;
inline constexpr schema::Type<P> kOwn = schema::kOwn<P>;
inline constexpr std::array<schema::Type<P>, schema::kMostTypes> kElements{
    kFixed<DType::f32>, kFixed<DType::bf16>, kFixed<DType::f16>, kFixed<DType::f64>, kFixed<DType::fp8_e4m3>};
/// Of out: that of q, and beside fp8, which no result has, the caller's choice.
inline constexpr std::array<schema::Type<P>, schema::kMostTypes> kResults{
    schema::Type<P>{[](const P& p) { return default_out_dtype(p.dtype); }},
    schema::Type<P>{[](const P& p) { return p.dtype == DType::fp8_e4m3 ? DType::f16 : p.dtype; }}};

/// Of tensors whose rows are contiguous, but not moved 16 bytes at a time.
[[nodiscard]] constexpr bool never(const P&) { return false; }
/// An option that is a tensor: of both calls, and of C's.
[[nodiscard]] constexpr auto option(const schema::Tensor<P>& tensor, TensorView O::* member,
                                    const DLTensor* C::* in_c) {
  return argument<P>(tensor, schema::in(&Forward::options, member), schema::in(&Backward::options, member), in_c);
}
/// Where packed sequences start.
[[nodiscard]] constexpr schema::Tensor<P> starts(std::string_view name) {
  return {.name = name,
          .rows = true,
          .moved = never,
          .dimensions = kOf<kEnds>,
          .types = {kFixed<DType::i32>},
          .needed = [](const P& p) { return is_packed(p); },
          .needed_by = "layout",
          .needs = "layout=thd",
          .summary = "int32 [batch_size + 1]; needs --layout thd"};
}
/// A number of each sequence.
[[nodiscard]] constexpr schema::Tensor<P> lengths(std::string_view name, bool P::* given, std::string_view summary) {
  return {.name = name,
          .optional = true,
          .rows = true,
          .moved = never,
          .dimensions = kOf<kSequences>,
          .types = {kFixed<DType::i32>},
          .given = given,
          .summary = summary};
}
/// With q, k and v in fp8. `heads`: the tensor's own.
template <ScaleKind P::* kind, const Dimension& heads>
[[nodiscard]] constexpr auto scale(std::string_view name, TensorView O::* member, std::optional<double> O::* number,
                                   const DLTensor* C::* in_c, double C::* number_in_c) {
  return option({.name = name,
                 .optional = true,
                 .dimensions = kScales<kind, heads>,
                 .types = {kFixed<DType::f32>},
                 .needed = [](const P& p) { return p.*kind != ScaleKind::none; },
                 .look = [](P& p, const TensorView& view) { p.*kind = scale_kind_of(view, p.*heads.size); }},
                member, in_c)
      .or_number(schema::in(&Forward::options, number), schema::in(&Backward::options, number), number_in_c);
}
[[nodiscard]] constexpr schema::Tensor<P> gradient(std::string_view name, bool P::* wanted,
                                                   const schema::Dimensions<P>& dimensions, std::string_view summary) {
  return {.name = name,
          .access = Access::write,
          .optional = true,
          .rows = true,
          .dimensions = dimensions,
          .types = {kOwn},
          .given = wanted,
          .summary = summary};
}
[[nodiscard]] constexpr schema::Tensor<P> gradient_like(std::string_view name, bool P::* wanted, std::string_view input,
                                                        std::string_view summary) {
  return {.name = name, .access = Access::write, .optional = true, .like = input, .given = wanted, .summary = summary};
}
/// What calls state beside their tensors.
template <typename Field, typename Value, typename... InC>
[[nodiscard]] constexpr auto stated(const Field& of, Value O::* member, InC C::*... in_c) {
  return of.from(schema::in(&Forward::options, member), schema::in(&Backward::options, member), in_c...);
}

// Options in the order in which torch's operators and Python take them, after the usual ones.
inline constexpr auto kSchema = schema::operation<&P::operation, Forward, Backward>(
    "attention",
    schema::Pack{
        field("device", &P::device),
        field("dtype", &P::dtype),
        field("out_dtype", &P::out_dtype),
        stated(field("layout", &P::layout), &O::layout, &C::layout),
        field("batch_size", &P::batch_size),
        stated(field("seqlen_q", &P::seqlen_q, kRequired).packed_as("max_seqlen_q").stated_where(is_packed<P>),
               &O::max_seqlen_q, &C::max_seqlen_q)
            .summed_up("layout thd; default: the longest"),
        stated(field("seqlen_k", &P::seqlen_k, [](const P& p) { return p.seqlen_q; })
                   .packed_as("max_seqlen_k")
                   .stated_where(is_packed<P>),
               &O::max_seqlen_k, &C::max_seqlen_k)
            .summed_up("layout thd; default: the longest"),
        field("total_q", &P::total_q, [](const P& p) { return saturating_product(p.batch_size, p.seqlen_q); })
            .where(is_packed<P>),
        field("total_k", &P::total_k, [](const P& p) { return saturating_product(p.batch_size, p.seqlen_k); })
            .where(is_packed<P>),
        field("num_heads_q", &P::num_heads_q),
        field("num_heads_k", &P::num_heads_k, [](const P& p) { return p.num_heads_q; }),
        field("head_dim", &P::head_dim, kRequired),
        field("head_dim_v", &P::head_dim_v, [](const P& p) { return p.head_dim; }),
        stated(field("mask", &P::mask), &O::mask, &C::mask),
        stated(field("alignment", &P::alignment), &O::alignment, &C::alignment),
        stated(field("window_left", &P::window_left), &O::window_left, &C::window_left)
            .summed_up("keys visible left of the diagonal; -1: all"),
        stated(field("window_right", &P::window_right), &O::window_right, &C::window_right)
            .summed_up("keys visible right of it; -1: all"),
        stated(field("softmax_scale", &P::softmax_scale, [](const P& p) { return default_softmax_scale(p.head_dim); }),
               &O::softmax_scale)
            .summed_up("default: 1/sqrt(head_dim)"),
        stated(field("softcap", &P::softcap), &O::softcap, &C::softcap).summed_up("0: off"),
        schema::word<P, BiasWord>(
            "bias", [](const P& p) { return BiasWord{p.bias, p.bias_dims}; },
            [](P& p, const BiasWord& bias) {
              p.bias = bias.kind;
              p.bias_dims = bias.dims;
            }),
        field("alibi_slopes", &P::alibi_slopes),
        field("sink", &P::sink),
        stated(field("dropout_p", &P::dropout_p), &O::dropout_p, &C::dropout_p).summed_up("in [0, 1)"),
        field("seed_tensor", &P::seed_tensor),
        field("seqused_q", &P::seqused_q),
        field("seqused_k", &P::seqused_k),
        field("leftpad_k", &P::leftpad_k),
        field("q_scale", &P::q_scale),
        field("k_scale", &P::k_scale),
        field("v_scale", &P::v_scale),
        field("softmax_lse", &P::softmax_lse),
        field("dlse", &P::dlse),
        field("dq", &P::dq),
        field("dk", &P::dk),
        field("dv", &P::dv),
        field("dbias", &P::dbias),
        field("dsink", &P::dsink),
        stated(field("deterministic", &P::deterministic), &O::deterministic, &C::deterministic)
            .summed_up("dq, dbias and dsink bit-reproducible too"),
        stated(field("batch_invariant", &P::batch_invariant), &O::batch_invariant, &C::batch_invariant)
            .summed_up("no sequence depends on the rest of the batch"),
        stated(field("clear_rest", &P::clear_rest), &O::clear_rest, &C::clear_rest),
        field("unaligned", &P::unaligned),
        field("bias_unaligned", &P::bias_unaligned),
        stated(field("score_mod", &P::score_mod), &O::score_mod, &C::score_mod)
            .summed_up("makes a score of score, b, h, q_idx, kv_idx and tables"),
        stated(field("mask_mod", &P::mask_mod), &O::mask_mod, &C::mask_mod)
            .summed_up("says of b, h, q_idx, kv_idx and tables whether a key is visible"),
        field("tables", &P::tables),
        field("dtables", &P::dtables),
        field("top_k", &P::top_k),
        field("key_indices_per_head", &P::key_indices_per_head),
        field("block_mask", &P::block_mask),
    },
    schema::Pack{
        argument<P>(
            {.name = "q",
             .rows = true,
             .dimensions = kRows<kQueries, kHeadsQ, kDim>,
             .types = kElements,
             .dtype = &P::dtype,
             .summary = "queries: f32, f16, f64, or bf16 kept as uint16; required but with --outs and --k-cache"},
            &Forward::q, &Backward::q, &CForward::q, &CBackward::q),
        argument<P>({.name = "k",
                     .rows = true,
                     .dimensions = kRows<kKeys, kHeadsK, kDim>,
                     .types = {kOwn},
                     .summary = "keys; likewise"},
                    &Forward::k, &Backward::k, &CForward::k, &CBackward::k),
        argument<P>({.name = "v",
                     .rows = true,
                     .dimensions = kRows<kKeys, kHeadsK, kDimV>,
                     .types = {kOwn},
                     .summary = "values; likewise"},
                    &Forward::v, &Backward::v, &CForward::v, &CBackward::v),
        argument<P>({.name = "out",
                     .access = Access::write,
                     .read_later = true,
                     .rows = true,
                     .dimensions = kRows<kQueries, kHeadsQ, kDimV>,
                     .types = kResults,
                     .note = [](P& p, std::span<const TensorView> out) { p.out_dtype = out[0].dtype; },
                     .entry_dtype = [](const P& p, std::size_t) { return out_dtype_of(p); },
                     .summary = "the result"},
                    &Forward::out, &Backward::out, &CForward::out, &CBackward::out),
        argument<P>({.name = "softmax_lse",
                     .access = Access::write,
                     .read_later = true,
                     .optional = true,
                     .dimensions = kLse,
                     .types = {schema::kStatistics<P>},
                     .given = &P::softmax_lse,
                     .summary = "log-sum-exp of each row",
                     .flag = "lse"},
                    &Forward::softmax_lse, &Backward::softmax_lse, &CForward::softmax_lse, &CBackward::softmax_lse),
        argument<P>({.name = "dout",
                     .rows = true,
                     .dimensions = kRows<kQueries, kHeadsQ, kDimV>,
                     .types = {kOwn},
                     .summary = "gradient of out: runs the backward pass too"},
                    &Backward::dout, &CBackward::dout),
        argument<P>({.name = "dlse",
                     .optional = true,
                     .dimensions = kLse,
                     .types = {schema::kStatistics<P>},
                     .given = &P::dlse,
                     .derivative_of = "softmax_lse",
                     .summary = "gradient of the log-sum-exp"},
                    &Backward::dlse, &CBackward::dlse),
        argument<P>(gradient("dq", &P::dq, kRows<kQueries, kHeadsQ, kDim>, "gradient of q; needs --dout"),
                    &Backward::dq, &CBackward::dq),
        argument<P>(gradient("dk", &P::dk, kRows<kKeys, kHeadsK, kDim>, "gradient of k; needs --dout"), &Backward::dk,
                    &CBackward::dk),
        argument<P>(gradient("dv", &P::dv, kRows<kKeys, kHeadsK, kDimV>, "gradient of v; needs --dout"), &Backward::dv,
                    &CBackward::dv),
        option({.name = "bias",
                .optional = true,
                .broadcast = true,
                .dimensions = kOf<kBiasBatch, kBiasHeads, kBiasQueries, kBiasKeys>,
                .types = {kFixed<DType::f32>, kOwn, kFixed<DType::boolean>},
                .kind = schema::kind<&P::bias, BiasKind::f32, BiasKind::query, BiasKind::boolean>(),
                .look = note_bias_dims,
                .summary = "added to the scores: f32 or the dtype of q; or bool, true = visible"},
               &O::bias, &C::bias),
        option({.name = "sink",
                .optional = true,
                .dimensions = kOf<kHeadsQ>,
                .types = {kFixed<DType::f32>, kOwn},
                .kind = schema::kind<&P::sink, SinkKind::f32, SinkKind::query>(),
                .summary = "f32 or the dtype of q, [num_heads_q]: a logit that joins the denominator only"},
               &O::sink, &C::sink),
        argument<P>(gradient_like("dbias", &P::dbias, "bias", "gradient of bias; needs --dout"), &Backward::dbias,
                    &CBackward::dbias),
        argument<P>(gradient_like("dsink", &P::dsink, "sink", "gradient of sink; needs --dout"), &Backward::dsink,
                    &CBackward::dsink),
        option({.name = "alibi_slopes",
                .optional = true,
                .dimensions = kOf<kSlopedSequences, kHeadsQ>,
                .types = {schema::kStatistics<P>},
                .needed = [](const P& p) { return p.alibi_slopes != AlibiKind::none; },
                .look =
                    [](P& p, const TensorView& view) {
                      p.alibi_slopes = view.rank == 2 ? AlibiKind::per_batch_head : AlibiKind::per_head;
                    },
                .summary = "f32 (f64 where q is) [num_heads_q] or [batch_size, num_heads_q]"},
               &O::alibi_slopes, &C::alibi_slopes),
        option(starts("cu_seqlens_q"), &O::cu_seqlens_q, &C::cu_seqlens_q),
        option(starts("cu_seqlens_k"), &O::cu_seqlens_k, &C::cu_seqlens_k),
        option(lengths("seqused_q", &P::seqused_q, "int32 [batch_size]: queries that count"), &O::seqused_q,
               &C::seqused_q),
        option(lengths("seqused_k", &P::seqused_k, "int32 [batch_size]: keys that count"), &O::seqused_k,
               &C::seqused_k),
        option(lengths("leftpad_k", &P::leftpad_k, "int32 [batch_size]: keys before those that count"), &O::leftpad_k,
               &C::leftpad_k),
        scale<&P::q_scale, kHeadsQ>("q_scale", &O::q_scale, &O::q_scale_value, &C::q_scale, &C::q_scale_value),
        scale<&P::k_scale, kHeadsK>("k_scale", &O::k_scale, &O::k_scale_value, &C::k_scale, &C::k_scale_value),
        scale<&P::v_scale, kHeadsK>("v_scale", &O::v_scale, &O::v_scale_value, &C::v_scale, &C::v_scale_value),
        option(key_indices<kBatch, kQueries, P>(), &O::key_indices, &C::key_indices),
        option({.name = "seed_and_offset",
                .optional = true,
                .dimensions = kOf<kTwo>,
                .types = {kFixed<DType::i64>},
                .given = &P::seed_tensor,
                .summary = "int64 [2]: the dropout's seed and offset, instead of --seed and --offset"},
               &O::seed_and_offset, &C::seed_and_offset),
    });

}  // namespace tilewise::operations::attention
