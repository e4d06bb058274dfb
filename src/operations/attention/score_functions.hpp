// score_mod and mask_mod among attention's names, and gradients of the tensors that they look up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/visibility.hpp"
#include "expression/derivative.hpp"
#include "operations/score_functions.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::operations::attention {

using operations::ScoreFunction, operations::function_name, operations::result_of, operations::signature_of,
    operations::kMostTables, operations::table_name, operations::score_function, operations::validate_score_functions,
    operations::normalise_score_functions, operations::normalise_texts;

/// "dtable0" and on; "dtables" of one that is too many.
[[nodiscard]] constexpr std::string_view dtable_name(std::size_t index) {
  constexpr std::array<std::string_view, kMostTables> kNames{"dtable0", "dtable1", "dtable2", "dtable3",
                                                             "dtable4", "dtable5", "dtable6", "dtable7"};
  return index < kMostTables ? kNames[index] : "dtables";
}

[[nodiscard]] constexpr bool wants_table_gradient(const AttentionProblem& p, std::size_t table) {
  return (p.dtables >> table & 1) != 0;
}

/// Whether tables of an element type have gradients.
[[nodiscard]] constexpr bool has_table_gradient(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
}

/// Of a problem's score_mod, every look-up of a table whose gradient is wanted. Throws Error where it has too many
/// terms.
[[nodiscard]] TILEWISE_INTERNAL std::vector<expression::LookUpDerivative> wanted_look_ups(
    const AttentionProblem& problem);

/// AttentionProblem::dtables of a call on a device. Throws Error for a gradient that is not as its table.
[[nodiscard]] std::int64_t described_table_gradients(const AttentionOptions& options, Device device);

/// Throws Error where gradients are wanted that are not there.
void validate_table_gradients(const AttentionProblem& problem);

}  // namespace tilewise::operations::attention
