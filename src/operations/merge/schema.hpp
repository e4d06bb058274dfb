// Merge as a schema: what its problem says, and which tensors its two kinds of call have.
#pragma once

#include <array>
#include <string_view>

#include "operations/derived/call.hpp"
#include "operations/merge/rules.hpp"
#include "operations/schema.hpp"
#include "tilewise/merge.hpp"

namespace tilewise::core {

template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<MergePass>{"merge", "merge_backward"};
template <>
inline constexpr std::array<std::string_view, 5> kNamesOf<PartsDType>{"f32", "bf16", "f16", "f64", "mixed"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<MergeSink>{"none", "f32", "query"};

}  // namespace tilewise::core

namespace tilewise::operations::merge {

using P = MergeProblem;
using Forward = MergeArguments;
using Backward = MergeBackwardArguments;
using Dimension = schema::Dimension<P>;
using Dimensions = schema::Dimensions<P>;
using core::Access, core::kRequired, schema::argument, schema::field, schema::size;

inline constexpr Dimension kParts{.name = "parts", .size = &P::parts, .least = 1, .index = "part"};
inline constexpr Dimension kBatch{
    .name = "batch_size", .size = &P::batch_size, .unpacked_only = true, .index = "batch"};
inline constexpr Dimension kQueries{.name = "seqlen_q", .size = &P::seqlen_q, .packed_name = "total_q", .index = "row"};
inline constexpr Dimension kHeads{.name = "num_heads_q", .size = &P::num_heads_q, .index = "head"};
inline constexpr Dimension kHeadDimV{
    .name = "head_dim_v", .size = &P::head_dim_v, .least = 1, .most = kMaxHeadDimV, .index = "dim"};

inline constexpr Dimensions kRows{Dimensions::Order::layout, {&kBatch, &kQueries, &kHeads, &kHeadDimV}};
inline constexpr Dimensions kLse{Dimensions::Order::written, {&kBatch, &kHeads, &kQueries}};
inline constexpr Dimensions kPerHead{Dimensions::Order::written, {&kHeads}};

inline constexpr schema::List<P> kEachPart{&kParts, &P::stacked, "partial result"};
inline constexpr auto kElements = schema::kElements<P>;

inline constexpr auto kSchema = schema::operation<&P::pass, Forward, Backward>(
    "merge",
    schema::Pack{
        field("device", &P::device),
        field("dtype", &P::dtype),
        field("parts_dtype", &P::parts_dtype, [](const P& p) { return parts_dtype_of(p.dtype); }),
        field("layout", &P::layout).from(&Forward::layout, &Backward::layout),
        size(kParts),
        size(kBatch),
        size(kQueries, kRequired),
        size(kHeads),
        size(kHeadDimV, kRequired),
        field("sink", &P::sink),
        field("stacked", &P::stacked),
        field("softmax_lse", &P::softmax_lse),
        field("dlse", &P::dlse),
        field("douts", &P::douts),
        field("dlses", &P::dlses),
        field("dsink", &P::dsink),
        field("unaligned", &P::unaligned),
    },
    schema::Pack{
        argument<P>({.name = "dout", .rows = true, .dimensions = kRows, .types = kElements, .dtype = &P::dtype},
                    &Backward::dout),
        argument<P>({.name = "dlse",
                     .optional = true,
                     .dimensions = kLse,
                     .types = {schema::kStatistics<P>},
                     .given = &P::dlse,
                     .derivative_of = "softmax_lse"},
                    &Backward::dlse),
        argument<P>({.name = "outs",
                     .rows = true,
                     .dimensions = kRows,
                     .list = kEachPart,
                     .types = {schema::kOwn<P>, schema::kStatistics<P>},
                     .note = note_parts,
                     .entry_dtype = part_dtype,
                     .summary = "merge these partial results, or one stacked array, instead of attention on --q"},
                    &Forward::outs, &Backward::outs),
        argument<P>({.name = "lses",
                     .dimensions = kLse,
                     .list = kEachPart,
                     .types = {schema::kStatistics<P>},
                     .summary = "their log-sum-exps"},
                    &Forward::lses, &Backward::lses),
        argument<P>({.name = "sink",
                     .optional = true,
                     .dimensions = kPerHead,
                     .types = {schema::kFixed<P, DType::f32>, schema::kOwn<P>},
                     .kind = schema::kind<&P::sink, MergeSink::f32, MergeSink::query>()},
                    &Forward::sink, &Backward::sink),
        argument<P>({.name = "out",
                     .access = Access::write,
                     .rows = true,
                     .dimensions = kRows,
                     .types = kElements,
                     .dtype = &P::dtype,
                     .made_like = "outs"},
                    &Forward::out),
        argument<P>({.name = "softmax_lse",
                     .access = Access::write,
                     .optional = true,
                     .dimensions = kLse,
                     .types = {schema::kStatistics<P>},
                     .given = &P::softmax_lse,
                     .flag = "lse"},
                    &Forward::softmax_lse),
        argument<P>({.name = "douts",
                     .access = Access::write,
                     .optional = true,
                     .like = "outs",
                     .given = &P::douts,
                     .summary = "gradients of --outs; needs --dout"},
                    &Backward::douts),
        argument<P>({.name = "dlses",
                     .access = Access::write,
                     .optional = true,
                     .like = "lses",
                     .given = &P::dlses,
                     .summary = "gradients of --lses; needs --dout"},
                    &Backward::dlses),
        argument<P>({.name = "dsink", .access = Access::write, .optional = true, .like = "sink", .given = &P::dsink},
                    &Backward::dsink),
    });

using Call = schema::CallOf<kSchema>;

}  // namespace tilewise::operations::merge
