// The one table of operators: how each is spelt, how tightly it binds, and what types it takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "expression/expression.hpp"

namespace tilewise::expression {

enum class Spelling : std::uint8_t { none, prefix, infix, function };

/// What operands must be, and what comes of them. Numbers of two types become floats; a bool beside a number becomes 1
/// or 0.
enum class Typing : std::uint8_t {
  none,
  arithmetic,  ///< numbers of one type, which is the result's
  ordering,    ///< likewise, and the result is a bool
  equality,    ///< likewise, or bools
  real,        ///< all become floats, as the result is
  logic,       ///< bools
  choice       ///< a bool, and two of one type, which is the result's
};

struct Operator {
  std::string_view word;
  Spelling spelling = Spelling::none;
  int operand_count = 0;
  int precedence = 0;  ///< of prefix and infix operators, as Python has it
  Typing typing = Typing::none;
};

inline constexpr int kLoosest = 0, kOrPrecedence = 1, kAndPrecedence = 2, kNotPrecedence = 3, kComparison = 4,
                     kBitOr = 5, kBitAnd = 6, kSum = 7, kProduct = 8, kUnary = 9, kTightest = 10;

inline constexpr auto kOperators = [] {
  std::array<Operator, static_cast<std::size_t>(Op::count_)> table{};
  const auto set = [&table](Op op, Operator facts) { table[static_cast<std::size_t>(op)] = facts; };
  using enum Spelling;
  set(Op::to_real, {"float", function, 1, 0, Typing::real});
  set(Op::negate, {"-", prefix, 1, kUnary, Typing::arithmetic});
  set(Op::logical_not, {"~", prefix, 1, kUnary, Typing::logic});
  set(Op::absolute, {"abs", function, 1, 0, Typing::arithmetic});
  set(Op::exp, {"exp", function, 1, 0, Typing::real});
  set(Op::exp2, {"exp2", function, 1, 0, Typing::real});
  set(Op::log, {"log", function, 1, 0, Typing::real});
  set(Op::tanh, {"tanh", function, 1, 0, Typing::real});
  set(Op::add, {"+", infix, 2, kSum, Typing::arithmetic});
  set(Op::subtract, {"-", infix, 2, kSum, Typing::arithmetic});
  set(Op::multiply, {"*", infix, 2, kProduct, Typing::arithmetic});
  set(Op::divide, {"/", infix, 2, kProduct, Typing::real});
  set(Op::floor_divide, {"//", infix, 2, kProduct, Typing::arithmetic});
  set(Op::remainder, {"%", infix, 2, kProduct, Typing::arithmetic});
  set(Op::minimum, {"min", function, 2, 0, Typing::arithmetic});
  set(Op::maximum, {"max", function, 2, 0, Typing::arithmetic});
  set(Op::less, {"<", infix, 2, kComparison, Typing::ordering});
  set(Op::less_equal, {"<=", infix, 2, kComparison, Typing::ordering});
  set(Op::equal, {"==", infix, 2, kComparison, Typing::equality});
  set(Op::not_equal, {"!=", infix, 2, kComparison, Typing::equality});
  set(Op::logical_and, {"&", infix, 2, kBitAnd, Typing::logic});
  set(Op::logical_or, {"|", infix, 2, kBitOr, Typing::logic});
  set(Op::select, {"select", function, 3, 0, Typing::choice});
  return table;
}();

[[nodiscard]] constexpr const Operator& operator_of(Op op) { return kOperators[static_cast<std::size_t>(op)]; }

/// Constants and variables: what is no work.
[[nodiscard]] constexpr bool is_leaf(const Node& node) { return node.op == Op::constant || node.op == Op::variable; }

}  // namespace tilewise::expression
