// score_mod and mask_mod: what they are functions of, and how a problem's texts are read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "expression/expression.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::operations::attention {

/// score_mod(score, b, h, q_idx, kv_idx) gives the score, mask_mod(b, h, q_idx, kv_idx) whether a key is visible.
enum class ScoreFunction : std::uint8_t { score_mod, mask_mod };

[[nodiscard]] constexpr std::string_view function_name(ScoreFunction function) {
  return function == ScoreFunction::score_mod ? "score_mod" : "mask_mod";
}
[[nodiscard]] constexpr expression::Type result_of(ScoreFunction function) {
  return function == ScoreFunction::score_mod ? expression::Type::real : expression::Type::boolean;
}

[[nodiscard]] expression::Signature signature_of(ScoreFunction function, std::vector<expression::Table> tables);

/// Tables that a call may have.
inline constexpr std::size_t kMostTables = 8;
/// "table0" and on; "tables" of one that is too many.
[[nodiscard]] constexpr std::string_view table_name(std::size_t index) {
  constexpr std::array<std::string_view, kMostTables> kNames{"table0", "table1", "table2", "table3",
                                                             "table4", "table5", "table6", "table7"};
  return index < kMostTables ? kNames[index] : "tables";
}

/// Throws Error where a table has no dimension or too many.
void check_table_rank(std::size_t index, int rank);

/// Of a problem's text: none where it has no such function. Throws Error for text that is no expression of the
/// problem's tables.
[[nodiscard]] std::optional<expression::Expression> score_function(const AttentionProblem& problem,
                                                                   ScoreFunction function);

/// Throws Error where functions and tables are no good, or tables stand without a function.
void validate_score_functions(const AttentionProblem& problem);

/// Brings texts to their one form; a function that changes nothing becomes none, and tables without a function go.
/// Leaves alone what is no good.
void normalise_score_functions(AttentionProblem& problem);

}  // namespace tilewise::operations::attention
