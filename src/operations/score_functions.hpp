// score_mod and mask_mod: what they are functions of, and how a problem's texts are read. Of every operation that has
// scores.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/visibility.hpp"
#include "expression/expression.hpp"
#include "operations/table_shapes.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::operations {

/// score_mod(score, b, h, q_idx, kv_idx) gives the score, mask_mod(b, h, q_idx, kv_idx) whether a key is visible.
enum class ScoreFunction : std::uint8_t { score_mod, mask_mod };

[[nodiscard]] constexpr std::string_view function_name(ScoreFunction function) {
  return function == ScoreFunction::score_mod ? "score_mod" : "mask_mod";
}
[[nodiscard]] constexpr expression::Type result_of(ScoreFunction function) {
  return function == ScoreFunction::score_mod ? expression::Type::real : expression::Type::boolean;
}

[[nodiscard]] TILEWISE_INTERNAL expression::Signature signature_of(ScoreFunction function,
                                                                   std::vector<expression::Table> tables);

/// Tables that a call may have.
inline constexpr std::size_t kMostTables = 8;
/// "table0" and on; "tables" of one that is too many.
[[nodiscard]] constexpr std::string_view table_name(std::size_t index) {
  constexpr std::array<std::string_view, kMostTables> kNames{"table0", "table1", "table2", "table3",
                                                             "table4", "table5", "table6", "table7"};
  return index < kMostTables ? kNames[index] : "tables";
}

/// What a problem says of its functions; empty texts where it has none.
struct ScoreFunctionTexts {
  std::string_view score_mod, mask_mod;
  std::span<const TableShape> tables;

  template <typename Problem>
    requires requires(const Problem& p) { p.score_mod, p.mask_mod, p.tables; }
  ScoreFunctionTexts(const Problem& p)  // NOLINT(google-explicit-constructor): problems are asked
      : score_mod(p.score_mod), mask_mod(p.mask_mod), tables(p.tables) {}
  ScoreFunctionTexts(std::string_view score, std::string_view mask, std::span<const TableShape> of)
      : score_mod(score), mask_mod(mask), tables(of) {}

  [[nodiscard]] bool empty() const { return score_mod.empty() && mask_mod.empty(); }
};

/// None where there is no such function. Throws Error for text that is no expression of the problem's tables.
[[nodiscard]] TILEWISE_INTERNAL std::optional<expression::Expression> score_function(const ScoreFunctionTexts& texts,
                                                                                     ScoreFunction function);

/// Throws Error where functions and tables are no good, or tables stand without a function.
void validate_score_functions(const ScoreFunctionTexts& texts);

/// Brings a problem's texts to their one form. False, and they are left alone, where they are no good.
bool normalise_texts(std::string& score_mod, std::string& mask_mod, const std::vector<TableShape>& tables);
/// And a function that changes nothing becomes none, and tables without a function go.
TILEWISE_INTERNAL void normalise_score_functions(std::string& score_mod, std::string& mask_mod,
                                                 std::vector<TableShape>& tables);
template <typename Problem>
void normalise_score_functions(Problem& problem) {
  normalise_score_functions(problem.score_mod, problem.mask_mod, problem.tables);
}

}  // namespace tilewise::operations
