// What score_mod and mask_mod are functions of.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "expression/expression.hpp"

namespace tilewise::operations::attention {

/// score_mod(score, b, h, q_idx, kv_idx) gives the score, mask_mod(b, h, q_idx, kv_idx) whether a key is visible.
enum class ScoreFunction : std::uint8_t { score_mod, mask_mod };

[[nodiscard]] constexpr std::string_view name_of(ScoreFunction function) {
  return function == ScoreFunction::score_mod ? "score_mod" : "mask_mod";
}
[[nodiscard]] constexpr expression::Type result_of(ScoreFunction function) {
  return function == ScoreFunction::score_mod ? expression::Type::real : expression::Type::boolean;
}

[[nodiscard]] inline expression::Signature signature_of(ScoreFunction function, std::vector<expression::Table> tables) {
  using enum expression::Type;
  expression::Signature signature{{{"b", integer}, {"h", integer}, {"q_idx", integer}, {"kv_idx", integer}},
                                  std::move(tables)};
  if (function == ScoreFunction::score_mod) signature.variables.insert(signature.variables.begin(), {"score", real});
  return signature;
}

}  // namespace tilewise::operations::attention
