// Derivatives.
#pragma once

#include <string_view>

#include "expression/expression.hpp"

namespace tilewise::expression {

/// What a float expression changes by with the float variable `by`, as an expression of the same signature. Steps
/// (comparisons, // and what is looked up) have none; where min and max meet it is that of their first operand, and
/// abs has none at 0. Throws Error (invalid_argument), beginning with `argument`, where it has too many terms.
[[nodiscard]] Expression derivative(const Expression& expression, std::string_view by, std::string_view argument);

}  // namespace tilewise::expression
