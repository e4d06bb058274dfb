// Constants are folded in double and in integers that must not wrap around; nothing is simplified that could change a
// result, NaN and the sign of zero included.
#include "expression/fold.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "core/message.hpp"
#include "expression/arithmetic.hpp"
#include "expression/operators.hpp"

namespace tilewise::expression {
namespace {

Node constant_node(Type type, std::uint64_t bits) { return {.op = Op::constant, .type = type, .bits = bits}; }
Node boolean_node(bool value) { return constant_node(Type::boolean, value ? 1 : 0); }
Node integer_node(std::int64_t value) { return constant_node(Type::integer, std::bit_cast<std::uint64_t>(value)); }
Node real_node(double value) {
  // One NaN, so that equal expressions have equal bits.
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
  return constant_node(Type::real, std::bit_cast<std::uint64_t>(value));
}

bool overflows(Op op, std::int64_t a, std::int64_t b) {
  std::int64_t unused = 0;
  switch (op) {
    case Op::add:
      return __builtin_add_overflow(a, b, &unused);
    case Op::subtract:
      return __builtin_sub_overflow(a, b, &unused);
    case Op::multiply:
      return __builtin_mul_overflow(a, b, &unused);
    case Op::floor_divide:
      return a == std::numeric_limits<std::int64_t>::min() && b == -1;
    default:
      return false;
  }
}

Node folded_integer(std::string_view argument, Op op, std::span<const Node> operands) {
  const std::int64_t a = operands[0].integer(), b = operands.size() > 1 ? operands[1].integer() : 0;
  const bool unary = operands.size() == 1;
  const bool lost = unary ? a == std::numeric_limits<std::int64_t>::min() : overflows(op, a, b);
  if (lost) {
    core::invalid_argument(argument, ": constants must stay within 64 bits (got '", operator_of(op).word, "' of ", a,
                           unary ? std::string() : core::concat(" and ", b), ")");
  }
  std::int64_t result = 0;
  if (unary) {
    with_unary<std::int64_t>(op, [&](const auto& f) { result = f(a); });
  } else {
    with_arithmetic<std::int64_t>(op, [&](const auto& f) { result = f(a, b); });
  }
  return integer_node(result);
}

Node folded_real(std::string_view argument, Op op, std::span<const Node> operands, bool finite) {
  if (op == Op::to_real) return real_node(static_cast<double>(operands[0].integer()));
  const double a = operands[0].real(), b = operands.size() > 1 ? operands[1].real() : 0.0;
  const bool unary = operands.size() == 1;
  double result = 0;
  if (unary) {
    with_unary<double>(op, [&](const auto& f) { result = f(a); });
  } else {
    with_arithmetic<double>(op, [&](const auto& f) { result = f(a, b); });
  }
  if (finite && !std::isfinite(result) && std::isfinite(a) && std::isfinite(b)) {
    core::invalid_argument(argument, ": finite constants must give a finite number (got ", result, " from '",
                           operator_of(op).word, "' of ", a, unary ? std::string() : core::concat(" and ", b), ")");
  }
  return real_node(result);
}

bool is_integer(const Node& node, std::int64_t value) {
  return node.op == Op::constant && node.type == Type::integer && node.integer() == value;
}
bool is_one(const Node& node) {
  return is_integer(node, 1) || (node.op == Op::constant && node.type == Type::real && node.real() == 1.0);
}
bool is_boolean(const Node& node, bool value) {
  return node.op == Op::constant && node.type == Type::boolean && (node.bits != 0) == value;
}

}  // namespace

Node folded(std::string_view argument, Op op, Type type, std::span<const Node> operands, bool finite) {
  const Node& a = operands.front();
  switch (operator_of(op).typing) {
    case Typing::logic:
      if (op == Op::logical_not) return boolean_node(a.bits == 0);
      return boolean_node(op == Op::logical_and ? (a.bits & operands[1].bits) != 0 : (a.bits | operands[1].bits) != 0);
    case Typing::ordering:
    case Typing::equality: {
      bool result = false;
      if (a.type == Type::real) {
        with_comparison<double>(op, [&](const auto& f) { result = f(a.real(), operands[1].real()); });
      } else {
        with_comparison<std::int64_t>(op, [&](const auto& f) { result = f(a.integer(), operands[1].integer()); });
      }
      return boolean_node(result);
    }
    case Typing::choice:
      return operands[a.bits != 0 ? 1 : 2];
    default:
      return type == Type::integer ? folded_integer(argument, op, operands)
                                   : folded_real(argument, op, operands, finite);
  }
}

std::optional<std::size_t> unchanged(Op op, std::span<const Node> operands) {
  const auto either = [&](const auto& is_neutral) -> std::optional<std::size_t> {
    if (is_neutral(operands[1])) return 0;
    if (is_neutral(operands[0])) return 1;
    return std::nullopt;
  };
  switch (op) {
    case Op::multiply:
      return either(is_one);
    case Op::add:
      return either([](const Node& node) { return is_integer(node, 0); });
    case Op::subtract:
      return is_integer(operands[1], 0) ? std::optional<std::size_t>(0) : std::nullopt;
    case Op::divide:
      return is_one(operands[1]) ? std::optional<std::size_t>(0) : std::nullopt;
    case Op::logical_and:  // true is neutral; false stays false
      if (operands[0] == operands[1] || is_boolean(operands[0], false)) return 0;
      return is_boolean(operands[1], false) ? 1 : either([](const Node& node) { return is_boolean(node, true); });
    case Op::logical_or:
      if (operands[0] == operands[1] || is_boolean(operands[0], true)) return 0;
      return is_boolean(operands[1], true) ? 1 : either([](const Node& node) { return is_boolean(node, false); });
    case Op::minimum:
    case Op::maximum:
      return operands[0] == operands[1] ? std::optional<std::size_t>(0) : std::nullopt;
    case Op::select:
      if (is_boolean(operands[0], true)) return 1;
      if (is_boolean(operands[0], false)) return 2;
      return operands[1] == operands[2] ? std::optional<std::size_t>(1) : std::nullopt;
    default:
      return std::nullopt;
  }
}

}  // namespace tilewise::expression
