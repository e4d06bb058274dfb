// The options of attention in the order of torch's operators: the usual ones first, since torch's cost of a call grows
// with every argument passed, then tensors, then the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include "operations/attention/schema.hpp"
#include "schema_options.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::python {

/// Whether an option stands among the first ones, or is the bindings' own to set: whether the rest is cleared.
[[nodiscard]] constexpr bool is_no_further_option(std::string_view key) {
  return key == "mask" || key == "softmax_scale" || key == "layout" || key == "clear_rest";
}

using AttentionOptionsBySchema = OptionsBySchema<operations::attention::kSchema, ForwardArguments>;

/// All but functions of scores, which torch's operators take in a form of their own.
inline constexpr auto kAttentionOptions = std::tuple_cat(
    std::tuple(FlagOption<AttentionOptions, Mask>{"causal", &AttentionOptions::mask, Mask::causal},
               Option<AttentionOptions, std::optional<double>>{"softmax_scale", &AttentionOptions::softmax_scale},
               Option<AttentionOptions, Layout>{"layout", &AttentionOptions::layout}),
    AttentionOptionsBySchema::of_kind<AttentionOptionsBySchema::Kind::tensor>(),
    std::tuple(Option<AttentionOptions, std::uint64_t>{"seed", &AttentionOptions::seed}),
    AttentionOptionsBySchema::of_kind<AttentionOptionsBySchema::Kind::value, is_no_further_option>(),
    AttentionOptionsBySchema::of_kind<AttentionOptionsBySchema::Kind::number>());
inline constexpr auto kScoreFunctions = AttentionOptionsBySchema::of_kind<AttentionOptionsBySchema::Kind::function>();

template <typename Visit>
void for_each_option(const Visit& visit) {
  std::apply([&visit](const auto&... options) { (visit(options), ...); }, kAttentionOptions);
}

}  // namespace tilewise::python
