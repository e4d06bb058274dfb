// Derivatives.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/visibility.hpp"
#include "expression/expression.hpp"

namespace tilewise::expression {

/// What a float expression changes by with the float variable `by`, as an expression of the same signature. Steps
/// (comparisons, // and what is looked up) have none; where min and max meet it is that of their first operand, and
/// abs has none at 0. Throws Error (invalid_argument), beginning with `argument`, where it has too many terms.
[[nodiscard]] TILEWISE_INTERNAL Expression derivative(const Expression& expression, std::string_view by,
                                                      std::string_view argument);

/// A look-up of floats: what the expression changes by with the element that it gives, and which element that is.
struct LookUpDerivative {
  std::uint32_t table;
  Expression slope;
  std::vector<Expression> indices;
};

/// Of a float expression, each look-up that it changes with, in the order of its nodes. Throws likewise.
[[nodiscard]] std::vector<LookUpDerivative> look_up_derivatives(const Expression& expression,
                                                                std::string_view argument);

}  // namespace tilewise::expression
