// Experts as a schema: what their problem says, and which tensors the two kinds of call have.
#pragma once

#include <array>
#include <string_view>

#include "operations/activation.hpp"
#include "operations/derived/call.hpp"
#include "operations/moe/rules.hpp"
#include "operations/schema.hpp"
#include "tilewise/moe.hpp"

namespace tilewise::core {

template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<MoePass>{"moe", "moe_backward"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<MoeGate>{"none", "concatenated", "interleaved"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<MoeClamp>{"none", "before", "after"};
template <>
inline constexpr std::array<std::string_view, 5> kNamesOf<MoeVector>{"none", "f32", "bf16", "f16", "f64"};

}  // namespace tilewise::core

namespace tilewise::operations::moe {

using P = MoeProblem;
using Forward = MoeArguments;
using Backward = MoeBackwardArguments;
using Dimension = schema::Dimension<P>;
using core::Access, core::kRequired, schema::argument, schema::field, schema::size;

inline constexpr Dimension kTokens{.name = "tokens", .size = &P::tokens, .index = "token"};
inline constexpr Dimension kHidden{.name = "hidden", .size = &P::hidden};
inline constexpr Dimension kIntermediate{.name = "intermediate", .size = &P::intermediate};
inline constexpr Dimension kExperts{.name = "num_experts", .size = &P::num_experts, .index = "expert"};
inline constexpr Dimension kTopK{.name = "top_k", .size = &P::top_k, .index = "j"};
inline constexpr Dimension kPairs{.name = "tokens * top_k", .index = "row", .follows = pairs_of};
/// Of gate_up, one of the two.
inline constexpr Dimension kGateAndUp{
    .name = "2 * intermediate", .index = "row", .follows = gate_up_rows, .exists = [](const P& p) {
      return p.gate != MoeGate::none;
    }};
inline constexpr Dimension kUpAlone{
    .name = "intermediate", .index = "row", .follows = gate_up_rows, .exists = [](const P& p) {
      return p.gate == MoeGate::none;
    }};
inline constexpr Dimension kTokenBlocks{
    .name = "blocks of tokens", .follows = [](const P& p) { return blocks_of(p.tokens, p.x_format.block_rows); }};
inline constexpr Dimension kXBlocks{
    .name = "blocks of hidden", .follows = [](const P& p) { return blocks_of(p.hidden, p.x_format.block_columns); }};
inline constexpr Dimension kGateUpRowBlocks{
    .name = "blocks of rows", .follows = [](const P& p) { return blocks_of(gate_up_rows(p), p.w_format.block_rows); }};
inline constexpr Dimension kGateUpColumnBlocks{
    .name = "blocks of hidden", .follows = [](const P& p) { return blocks_of(p.hidden, p.w_format.block_columns); }};
inline constexpr Dimension kDownRowBlocks{
    .name = "blocks of hidden", .follows = [](const P& p) { return blocks_of(p.hidden, p.w_format.block_rows); }};
inline constexpr Dimension kDownColumnBlocks{.name = "blocks of intermediate", .follows = [](const P& p) {
                                               return blocks_of(p.intermediate, p.w_format.block_columns);
                                             }};

template <const Dimension&... dimensions>
inline constexpr schema::Dimensions<P> kOf{schema::Dimensions<P>::Order::written, {&dimensions...}};
template <DType dtype>
inline constexpr schema::Type<P> kFixed = schema::kFixed<P, dtype>;
inline constexpr schema::Type<P> kWeight{weight_dtype};
inline constexpr schema::Type<P> kWeightScale{[](const P& p) { return p.w_format.scale; }};

/// Of x: those that are computed in, and that of quantised rows.
inline constexpr std::array<schema::Type<P>, schema::kMostTypes> kRowTypes{
    kFixed<DType::f32>, kFixed<DType::bf16>, kFixed<DType::f16>, kFixed<DType::f64>, kFixed<DType::fp8_e4m3>};
template <MoeVector P::* member>
inline constexpr auto kVector = schema::kind<member, MoeVector::f32, MoeVector::bf16, MoeVector::f16, MoeVector::f64>();

[[nodiscard]] constexpr bool has_quantised_weights(const P& p) { return p.w_format.defined(); }
[[nodiscard]] constexpr bool has_global_scales(const P& p) { return p.w_format.global; }
[[nodiscard]] constexpr bool saves_gate_up(const P& p) { return p.save_gate_up; }
/// By default.
[[nodiscard]] constexpr bool wants_weight_gradients(const P& p) {
  return p.pass == MoePass::moe || !p.w_format.defined();
}

inline constexpr auto kSchema = schema::operation<&P::pass, Forward, Backward>(
    "moe",
    schema::Pack{
        field("device", &P::device),
        field("w_format", &P::w_format).from(&Forward::w_format, &Backward::w_format),
        field("x_format", &P::x_format).from(&Forward::x_format),
        field("h_format", &P::h_format).from(&Forward::h_format),
        field("dtype", &P::dtype, [](const P& p) { return p.x_format.defined() ? p.x_format.element : DType::f32; }),
        field("out_dtype", &P::out_dtype, [](const P& p) { return p.x_format.defined() ? DType::bf16 : p.dtype; })
            .from(&Forward::out_dtype),
        field("ids_dtype", &P::ids_dtype),
        field("weights_dtype", &P::weights_dtype, [](const P& p) { return statistics_dtype(p.dtype); }),
        size(kTokens, kRequired),
        size(kHidden, kRequired),
        size(kIntermediate, kRequired),
        size(kExperts, kRequired),
        size(kTopK, kRequired),
        field("first_expert", &P::first_expert).from(&Forward::first_expert, &Backward::first_expert),
        field("gate", &P::gate).from(&Forward::gate, &Backward::gate),
        field("activation", &P::activation).from(&Forward::activation, &Backward::activation),
        field("alpha", &P::alpha).from(&Forward::alpha, &Backward::alpha),
        field("clamp", &P::clamp).from(&Forward::clamp, &Backward::clamp),
        field("limit", &P::limit, [](const P& p) { return p.clamp == MoeClamp::none ? 0.0 : kDefaultLimit; })
            .from(&Forward::limit, &Backward::limit),
        field("gate_up_bias", &P::gate_up_bias),
        field("down_bias", &P::down_bias),
        field("norm", &P::norm),
        field("norm_epsilon", &P::norm_epsilon).from(&Forward::norm_epsilon),
        field("weight_on_input", &P::weight_on_input).from(&Forward::weight_on_input, &Backward::weight_on_input),
        field("batch_invariant", &P::batch_invariant).from(&Forward::batch_invariant, &Backward::batch_invariant),
        field("save_gate_up", &P::save_gate_up).from(&Forward::save_gate_up, &Backward::save_gate_up),
        field("gate_up_transposed", &P::gate_up_transposed),
        field("down_transposed", &P::down_transposed),
        field("dx", &P::dx),
        field("dtopk_weights", &P::dtopk_weights),
        field("dgate_up", &P::dgate_up, wants_weight_gradients),
        field("ddown", &P::ddown, wants_weight_gradients),
        field("dgate_up_bias", &P::dgate_up_bias),
        field("ddown_bias", &P::ddown_bias),
        field("dgate_up_transposed", &P::dgate_up_transposed),
        field("ddown_transposed", &P::ddown_transposed),
        field("unaligned", &P::unaligned),
    },
    schema::Pack{
        argument<P>({.name = "x",
                     .rows = true,
                     .dimensions = kOf<kTokens, kHidden>,
                     .types = kRowTypes,
                     .dtype = &P::dtype,
                     .summary = "tokens of a layer of experts"},
                    &Forward::x, &Backward::x),
        argument<P>({.name = "topk_ids",
                     .dimensions = kOf<kTokens, kTopK>,
                     .types = {kFixed<DType::i32>, kFixed<DType::i64>},
                     .dtype = &P::ids_dtype,
                     .summary = "experts of each token"},
                    &Forward::topk_ids, &Backward::topk_ids),
        argument<P>({.name = "topk_weights",
                     .dimensions = kOf<kTokens, kTopK>,
                     .types = schema::kElements<P>,
                     .dtype = &P::weights_dtype,
                     .summary = "and what each of them weighs"},
                    &Forward::topk_weights, &Backward::topk_weights),
        // Before gate_up, whose rows follow from what this one says.
        argument<P>({.name = "down",
                     .transposed = &P::down_transposed,
                     .dimensions = kOf<kExperts, kHidden, kIntermediate>,
                     .types = {kWeight},
                     .summary = "second weights of experts"},
                    &Forward::down, &Backward::down),
        argument<P>({.name = "gate_up",
                     .transposed = &P::gate_up_transposed,
                     .dimensions = kOf<kExperts, kGateAndUp, kUpAlone, kHidden>,
                     .types = {kWeight},
                     .summary = "first weights of experts: with --x a layer of them instead of a linear one"},
                    &Forward::gate_up, &Backward::gate_up),
        argument<P>({.name = "gate_up_bias",
                     .optional = true,
                     .dimensions = kOf<kExperts, kGateAndUp, kUpAlone>,
                     .types = schema::kElements<P>,
                     .kind = kVector<&P::gate_up_bias>},
                    &Forward::gate_up_bias, &Backward::gate_up_bias),
        argument<P>({.name = "down_bias",
                     .optional = true,
                     .dimensions = kOf<kExperts, kHidden>,
                     .types = schema::kElements<P>,
                     .kind = kVector<&P::down_bias>},
                    &Forward::down_bias, &Backward::down_bias),
        argument<P>({.name = "norm_weight",
                     .optional = true,
                     .dimensions = kOf<kExperts, kHidden>,
                     .types = schema::kElements<P>,
                     .kind = kVector<&P::norm>,
                     .summary = "of an RMS norm of each expert's output"},
                    &Forward::norm_weight),
        argument<P>({.name = "x_scale",
                     .dimensions = kOf<kTokenBlocks, kXBlocks>,
                     .types = {schema::Type<P>{[](const P& p) { return p.x_format.scale; }}},
                     .needed = [](const P& p) { return p.x_format.defined(); },
                     .needed_by = "x_format",
                     .summary = "scales of --x"},
                    &Forward::x_scale),
        argument<P>({.name = "gate_up_scale",
                     .dimensions = kOf<kExperts, kGateUpRowBlocks, kGateUpColumnBlocks>,
                     .types = {kWeightScale},
                     .needed = has_quantised_weights,
                     .needed_by = "w_format",
                     .summary = "scales of --gate-up"},
                    &Forward::gate_up_scale, &Backward::gate_up_scale),
        argument<P>({.name = "down_scale",
                     .dimensions = kOf<kExperts, kDownRowBlocks, kDownColumnBlocks>,
                     .types = {kWeightScale},
                     .needed = has_quantised_weights,
                     .needed_by = "w_format",
                     .summary = "scales of --down"},
                    &Forward::down_scale, &Backward::down_scale),
        argument<P>({.name = "gate_up_global_scale",
                     .dimensions = kOf<kExperts>,
                     .types = {kFixed<DType::f32>},
                     .needed = has_global_scales,
                     .needed_by = "w_format",
                     .summary = "what nvfp4 has beside --gate-up-scale"},
                    &Forward::gate_up_global_scale, &Backward::gate_up_global_scale),
        argument<P>({.name = "down_global_scale",
                     .dimensions = kOf<kExperts>,
                     .types = {kFixed<DType::f32>},
                     .needed = has_global_scales,
                     .needed_by = "w_format",
                     .summary = "what nvfp4 has beside --down-scale"},
                    &Forward::down_global_scale, &Backward::down_global_scale),
        argument<P>({.name = "dout",
                     .rows = true,
                     .dimensions = kOf<kTokens, kHidden>,
                     .types = schema::kElements<P>,
                     .dtype = &P::out_dtype},
                    &Backward::dout),
        argument<P>({.name = "out",
                     .access = Access::write,
                     .rows = true,
                     .dimensions = kOf<kTokens, kHidden>,
                     .types = schema::kElements<P>,
                     .dtype = &P::out_dtype},
                    &Forward::out),
        argument<P>({.name = "gate_up_out",
                     .access = Access::write,
                     .read_later = true,
                     .rows = true,
                     .dimensions = kOf<kPairs, kGateAndUp, kUpAlone>,
                     .types = {schema::kOwn<P>},
                     .needed = saves_gate_up,
                     .needed_by = "save_gate_up",
                     .summary = "sums of the first product, for a backward pass"},
                    &Forward::gate_up_out, &Backward::gate_up_out),
        argument<P>({.name = "dx",
                     .access = Access::write,
                     .optional = true,
                     .like = "x",
                     .given = &P::dx,
                     .summary = "gradient of --x; needs --dout"},
                    &Backward::dx),
        argument<P>({.name = "dtopk_weights",
                     .access = Access::write,
                     .optional = true,
                     .like = "topk_weights",
                     .given = &P::dtopk_weights,
                     .summary = "gradient of --topk-weights"},
                    &Backward::dtopk_weights),
        argument<P>({.name = "dgate_up",
                     .access = Access::write,
                     .optional = true,
                     .transposed = &P::dgate_up_transposed,
                     .dimensions = kOf<kExperts, kGateAndUp, kUpAlone, kHidden>,
                     .types = {schema::kOwn<P>},
                     .given = &P::dgate_up,
                     .summary = "gradient of --gate-up"},
                    &Backward::dgate_up),
        argument<P>({.name = "ddown",
                     .access = Access::write,
                     .optional = true,
                     .transposed = &P::ddown_transposed,
                     .dimensions = kOf<kExperts, kHidden, kIntermediate>,
                     .types = {schema::kOwn<P>},
                     .given = &P::ddown,
                     .summary = "gradient of --down"},
                    &Backward::ddown),
        argument<P>({.name = "dgate_up_bias",
                     .access = Access::write,
                     .optional = true,
                     .like = "gate_up_bias",
                     .given = &P::dgate_up_bias},
                    &Backward::dgate_up_bias),
        argument<P>({.name = "ddown_bias",
                     .access = Access::write,
                     .optional = true,
                     .like = "down_bias",
                     .given = &P::ddown_bias},
                    &Backward::ddown_bias),
    });

using Call = schema::CallOf<kSchema>;

}  // namespace tilewise::operations::moe
