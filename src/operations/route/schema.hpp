// Route as a schema: what its problem says, and which tensors its two kinds of call have.
#pragma once

#include <array>
#include <string_view>

#include "operations/derived/call.hpp"
#include "operations/route/rules.hpp"
#include "operations/schema.hpp"
#include "tilewise/route.hpp"

namespace tilewise::core {

template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<RoutePass>{"route", "route_backward"};
template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<RouteScore>{"softmax", "sigmoid", "sqrt_softplus",
                                                                      "identity"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<RouteChosenBy>{"score", "logits"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<RouteGroupValue>{"max", "sum_of_two"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<RouteOutsideGroups>{"minus_infinity", "zero"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<RouteWeigh>{"score", "softmax_of_chosen",
                                                                      "sigmoid_of_chosen"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<RouteNormalise>{"no", "sum_plus_epsilon", "at_least_epsilon"};

}  // namespace tilewise::core

namespace tilewise::operations::route {

using P = RouteProblem;
using Forward = RouteArguments;
using Backward = RouteBackwardArguments;
using Dimension = schema::Dimension<P>;
using Dimensions = schema::Dimensions<P>;
using core::Access, core::kRequired, schema::argument, schema::field, schema::size;

inline constexpr Dimension kTokens{.name = "tokens", .size = &P::tokens, .index = "token"};
inline constexpr Dimension kExperts{.name = "num_experts", .size = &P::num_experts, .least = 1, .index = "expert"};
inline constexpr Dimension kTopK{.name = "top_k", .size = &P::top_k, .least = 1, .index = "choice"};

inline constexpr Dimensions kPerExpert{Dimensions::Order::written, {&kTokens, &kExperts}};
inline constexpr Dimensions kPerChoice{Dimensions::Order::written, {&kTokens, &kTopK}};
inline constexpr Dimensions kOfExperts{Dimensions::Order::written, {&kExperts}};

using Types = std::array<schema::Type<P>, schema::kMostTypes>;
inline constexpr Types kElements = schema::kElements<P>;
inline constexpr Types kIntegers{schema::kFixed<P, DType::i32>, schema::kFixed<P, DType::i64>};
/// Of weights: f64 where the logits are.
inline constexpr Types kWeights{schema::kFixed<P, DType::f32>, schema::kFixed<P, DType::bf16>,
                                schema::kFixed<P, DType::f16>, schema::kStatistics<P>};
template <DType P::* member>
inline constexpr auto kElement = schema::kind<member, DType::f32, DType::bf16, DType::f16, DType::f64>();

inline constexpr auto kSchema = schema::operation<&P::pass, Forward, Backward>(
    "route",
    schema::Pack{
        field("device", &P::device),
        field("dtype", &P::dtype),
        field("ids_dtype", &P::ids_dtype),
        field("weights_dtype", &P::weights_dtype),
        size(kTokens, kRequired),
        size(kExperts, kRequired),
        size(kTopK, kRequired),
        field("score", &P::score).from(&Forward::score, &Backward::score),
        field("weigh", &P::weigh).from(&Forward::weigh, &Backward::weigh),
        field("normalise", &P::normalise).from(&Forward::normalise, &Backward::normalise),
        field("epsilon", &P::epsilon).from(&Forward::epsilon, &Backward::epsilon),
        field("routed_scaling_factor", &P::routed_scaling_factor)
            .from(&Forward::routed_scaling_factor, &Backward::routed_scaling_factor),
        field("scale_of_expert", &P::scale_of_expert),
        field("chosen_by", &P::chosen_by).from(&Forward::chosen_by),
        field("bias", &P::bias),
        field("n_group", &P::n_group).from(&Forward::n_group),
        field("topk_group", &P::topk_group, [](const P& p) { return p.n_group; }).from(&Forward::topk_group),
        field("group_value", &P::group_value).from(&Forward::group_value),
        field("outside_groups", &P::outside_groups).from(&Forward::outside_groups),
    },
    schema::Pack{
        argument<P>({.name = "logits",
                     .dimensions = kPerExpert,
                     .types = kElements,
                     .dtype = &P::dtype,
                     .summary = "route tokens by these, instead of attention on --q"},
                    &Forward::logits, &Backward::logits),
        argument<P>({.name = "bias",
                     .optional = true,
                     .dimensions = kOfExperts,
                     .types = kElements,
                     .kind = kElement<&P::bias>},
                    &Forward::bias),
        argument<P>({.name = "scale_of_expert",
                     .optional = true,
                     .dimensions = kOfExperts,
                     .types = kElements,
                     .kind = kElement<&P::scale_of_expert>,
                     .summary = "factors of the weights, one for each expert"},
                    &Forward::scale_of_expert, &Backward::scale_of_expert),
        argument<P>({.name = "topk_ids",
                     .access = Access::write,
                     .read_later = true,
                     .dimensions = kPerChoice,
                     .types = kIntegers,
                     .dtype = &P::ids_dtype,
                     .summary = "the chosen experts"},
                    &Forward::topk_ids, &Backward::topk_ids),
        argument<P>({.name = "topk_weights",
                     .access = Access::write,
                     .dimensions = kPerChoice,
                     .types = kWeights,
                     .dtype = &P::weights_dtype,
                     .summary = "what they weigh"},
                    &Forward::topk_weights),
        argument<P>({.name = "dtopk_weights",
                     .dimensions = kPerChoice,
                     .types = kWeights,
                     .dtype = &P::weights_dtype,
                     .summary = "gradient of --topk-weights"},
                    &Backward::dtopk_weights),
        argument<P>({.name = "dlogits", .access = Access::write, .like = "logits", .summary = "gradient of --logits"},
                    &Backward::dlogits),
    });

using Call = schema::CallOf<kSchema>;

}  // namespace tilewise::operations::route
