// What is known of a term before it is evaluated: operations on constants, and those that change nothing.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "expression/expression.hpp"

namespace tilewise::expression {

/// The constant that `op` makes of constants of the types it takes. Throws Error (invalid_argument), beginning with
/// `argument`, where it is no number of 64 bits, or with `finite` no finite one of finite ones.
[[nodiscard]] Node folded(std::string_view argument, Op op, Type type, std::span<const Node> operands, bool finite);

/// The place among `operands` of the one that `op` gives unchanged: x of x * 1, or of select(true, x, y).
[[nodiscard]] std::optional<std::size_t> unchanged(Op op, std::span<const Node> operands);

}  // namespace tilewise::expression
