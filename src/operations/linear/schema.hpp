// Linear layers as a schema: what their problem says, and which tensors the two kinds of call have.
#pragma once

#include <array>
#include <string_view>

#include "formats/field.hpp"
#include "operations/activation.hpp"
#include "operations/derived/call.hpp"
#include "operations/linear/rules.hpp"
#include "operations/schema.hpp"
#include "tilewise/linear.hpp"

namespace tilewise::core {

template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<LinearPass>{"linear", "linear_backward"};
template <>
inline constexpr std::array<std::string_view, 5> kNamesOf<LinearGroups>{"none", "offsets_i32", "offsets_i64",
                                                                        "counts_i32", "counts_i64"};
template <>
inline constexpr std::array<std::string_view, 5> kNamesOf<LinearBias>{"none", "f32", "bf16", "f16", "f64"};

}  // namespace tilewise::core

namespace tilewise::operations::linear {

using P = LinearProblem;
using Forward = LinearArguments;
using Backward = LinearBackwardArguments;
using Dimension = schema::Dimension<P>;
using core::Access, core::kRequired, schema::argument, schema::field, schema::size;

inline constexpr Dimension kTokens{.name = "tokens", .size = &P::tokens, .index = "row"};
inline constexpr Dimension kN{.name = "n", .size = &P::n};
inline constexpr Dimension kK{.name = "k", .size = &P::k};
inline constexpr Dimension kExperts{
    .name = "num_experts", .size = &P::num_experts, .index = "expert", .exists = is_grouped};
inline constexpr Dimension kEnds{.name = "num_experts + 1", .follows = [](const P& p) { return p.num_experts + 1; }};
inline constexpr Dimension kTokenBlocks{
    .name = "blocks of tokens", .follows = [](const P& p) { return blocks_of(p.tokens, p.x_format.block_rows); }};
inline constexpr Dimension kXBlocks{.name = "blocks of k",
                                    .follows = [](const P& p) { return blocks_of(p.k, p.x_format.block_columns); }};
inline constexpr Dimension kNBlocks{.name = "blocks of n",
                                    .follows = [](const P& p) { return blocks_of(p.n, p.w_format.block_rows); }};
inline constexpr Dimension kKBlocks{.name = "blocks of k",
                                    .follows = [](const P& p) { return blocks_of(p.k, p.w_format.block_columns); }};

template <const Dimension&... dimensions>
inline constexpr schema::Dimensions<P> kOf{schema::Dimensions<P>::Order::written, {&dimensions...}};
template <DType dtype>
inline constexpr schema::Type<P> kFixed = schema::kFixed<P, dtype>;

/// Of x: those that are computed in, and that of quantised rows.
inline constexpr std::array<schema::Type<P>, schema::kMostTypes> kRowTypes{
    kFixed<DType::f32>, kFixed<DType::bf16>, kFixed<DType::f16>, kFixed<DType::f64>, kFixed<DType::fp8_e4m3>};
inline constexpr auto kBias =
    schema::kind<&P::bias, LinearBias::f32, LinearBias::bf16, LinearBias::f16, LinearBias::f64>();
inline constexpr auto kGroupsByOffsets =
    schema::kind<&P::groups, LinearGroups::offsets_i32, LinearGroups::offsets_i64>();
inline constexpr auto kGroupsByCounts = schema::kind<&P::groups, LinearGroups::counts_i32, LinearGroups::counts_i64>();

inline constexpr auto kSchema = schema::operation<&P::pass, Forward, Backward>(
    "linear",
    schema::Pack{
        field("device", &P::device),
        field("w_format", &P::w_format).from(&Forward::w_format, &Backward::w_format),
        field("x_format", &P::x_format).from(&Forward::x_format),
        field("dtype", &P::dtype, [](const P& p) { return p.x_format.defined() ? p.x_format.element : DType::f32; }),
        field("out_dtype", &P::out_dtype, [](const P& p) { return p.x_format.defined() ? DType::bf16 : p.dtype; })
            .from(&Forward::out_dtype),
        size(kTokens, kRequired),
        size(kN, kRequired),
        size(kK, kRequired),
        field("groups", &P::groups),
        size(kExperts),
        field("bias", &P::bias),
        field("activation", &P::activation).from(&Forward::activation, &Backward::activation),
        field("batch_invariant", &P::batch_invariant).from(&Forward::batch_invariant, &Backward::batch_invariant),
        field("w_transposed", &P::w_transposed),
        field("dx", &P::dx),
        field("dw", &P::dw, [](const P& p) { return p.pass == LinearPass::linear || !p.w_format.defined(); }),
        field("dbias", &P::dbias),
        field("dw_transposed", &P::dw_transposed),
        field("unaligned", &P::unaligned),
    },
    schema::Pack{
        argument<P>({.name = "x",
                     .rows = true,
                     .dimensions = kOf<kTokens, kK>,
                     .types = kRowTypes,
                     .dtype = &P::dtype,
                     .summary = "multiply these rows by --w instead of attention on --q"},
                    &Forward::x, &Backward::x),
        argument<P>({.name = "w",
                     .transposed = &P::w_transposed,
                     .dimensions = kOf<kExperts, kN, kK>,
                     .types = {schema::Type<P>{w_dtype}},
                     .summary = "weights of a linear layer, or of each expert"},
                    &Forward::w, &Backward::w),
        argument<P>({.name = "bias",
                     .optional = true,
                     .dimensions = kOf<kExperts, kN>,
                     .types = schema::kElements<P>,
                     .kind = kBias},
                    &Forward::bias, &Backward::bias),
        argument<P>({.name = "x_scale",
                     .dimensions = kOf<kTokenBlocks, kXBlocks>,
                     .types = {schema::Type<P>{[](const P& p) { return p.x_format.scale; }}},
                     .needed = [](const P& p) { return p.x_format.defined(); },
                     .needed_by = "x_format",
                     .summary = "scales of --x"},
                    &Forward::x_scale),
        argument<P>({.name = "w_scale",
                     .dimensions = kOf<kExperts, kNBlocks, kKBlocks>,
                     .types = {schema::Type<P>{[](const P& p) { return p.w_format.scale; }}},
                     .needed = [](const P& p) { return p.w_format.defined(); },
                     .needed_by = "w_format",
                     .summary = "scales of --w"},
                    &Forward::w_scale, &Backward::w_scale),
        argument<P>({.name = "w_global_scale",
                     .dimensions = kOf<kExperts>,
                     .types = {kFixed<DType::f32>},
                     .needed = [](const P& p) { return p.w_format.global; },
                     .needed_by = "w_format",
                     .summary = "what nvfp4 has beside --w-scale"},
                    &Forward::w_global_scale, &Backward::w_global_scale),
        argument<P>({.name = "offsets",
                     .optional = true,
                     .dimensions = kOf<kEnds>,
                     .types = {kFixed<DType::i32>, kFixed<DType::i64>},
                     .kind = kGroupsByOffsets,
                     .summary = "first rows of the experts, and the last one's end"},
                    &Forward::offsets, &Backward::offsets),
        argument<P>({.name = "counts",
                     .optional = true,
                     .dimensions = kOf<kExperts>,
                     .types = {kFixed<DType::i32>, kFixed<DType::i64>},
                     .kind = kGroupsByCounts,
                     .summary = "rows of each expert, instead of --offsets"},
                    &Forward::counts, &Backward::counts),
        argument<P>({.name = "dout",
                     .rows = true,
                     .dimensions = kOf<kTokens, kN>,
                     .types = schema::kElements<P>,
                     .dtype = &P::out_dtype},
                    &Backward::dout),
        argument<P>({.name = "out",
                     .access = Access::write,
                     .rows = true,
                     .dimensions = kOf<kTokens, kN>,
                     .types = schema::kElements<P>,
                     .dtype = &P::out_dtype},
                    &Forward::out),
        argument<P>({.name = "dx",
                     .access = Access::write,
                     .optional = true,
                     .rows = true,
                     .dimensions = kOf<kTokens, kK>,
                     .types = {schema::kOwn<P>},
                     .given = &P::dx,
                     .summary = "gradient of --x; needs --dout"},
                    &Backward::dx),
        argument<P>({.name = "dw",
                     .access = Access::write,
                     .optional = true,
                     .transposed = &P::dw_transposed,
                     .dimensions = kOf<kExperts, kN, kK>,
                     .types = {schema::kOwn<P>},
                     .given = &P::dw,
                     .summary = "gradient of --w"},
                    &Backward::dw),
        argument<P>({.name = "dbias", .access = Access::write, .optional = true, .like = "bias", .given = &P::dbias},
                    &Backward::dbias),
    });

using Call = schema::CallOf<kSchema>;

}  // namespace tilewise::operations::linear
