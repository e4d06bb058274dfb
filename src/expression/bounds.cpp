// Interval arithmetic. Floats are rounded outwards to numbers of fp32, between which every rounding of fp32 and fp64
// stays; an int that may wrap around may be anything.
#include "expression/bounds.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "expression/arithmetic.hpp"
#include "expression/operators.hpp"

namespace tilewise::expression {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
constexpr Interval kAnyInteger{.low = kLowest, .high = kHighest};
constexpr Interval kAnyReal{.real_low = -kUnbounded, .real_high = kUnbounded, .may_be_nan = true};
constexpr Interval kAnyBool{.low = 0, .high = 1};

/// Outwards by `steps` numbers of fp32; the errors of exp, log and tanh are less than 4.
Interval rounded_outwards(double low, double high, bool may_be_nan, int steps = 1) {
  if (std::isnan(low) || std::isnan(high)) return kAnyReal;
  auto low32 = static_cast<float>(low), high32 = static_cast<float>(high);
  for (int i = 0; i < steps; ++i) {
    // An exact number of fp32 stays: what is computed is no further away.
    if (steps > 1 || low32 > low) low32 = std::nextafter(low32, -std::numeric_limits<float>::infinity());
    if (steps > 1 || high32 < high) high32 = std::nextafter(high32, std::numeric_limits<float>::infinity());
  }
  return Interval::of_reals(low32, high32, may_be_nan);
}

Interval of_bool(bool may_be_false, bool may_be_true) {
  return Interval::of_integers(may_be_false ? 0 : 1, may_be_true ? 1 : 0);
}

/// The least and greatest of an operation's results at corners.
template <typename F>
Interval integer_corners(const Interval& a, const Interval& b, const F& overflows_into) {
  std::int64_t low = kHighest, high = kLowest;
  for (const std::int64_t x : {a.low, a.high}) {
    for (const std::int64_t y : {b.low, b.high}) {
      std::int64_t result = 0;
      if (overflows_into(x, y, &result)) return kAnyInteger;
      low = std::min(low, result);
      high = std::max(high, result);
    }
  }
  return Interval::of_integers(low, high);
}

Interval integer_arithmetic(Op op, const Interval& a, const Interval& b) {
  switch (op) {
    case Op::add:
      return integer_corners(a, b, [](auto x, auto y, auto* to) { return __builtin_add_overflow(x, y, to); });
    case Op::subtract:
      return integer_corners(a, b, [](auto x, auto y, auto* to) { return __builtin_sub_overflow(x, y, to); });
    case Op::multiply:
      return integer_corners(a, b, [](auto x, auto y, auto* to) { return __builtin_mul_overflow(x, y, to); });
    case Op::minimum:
      return Interval::of_integers(std::min(a.low, b.low), std::min(a.high, b.high));
    case Op::maximum:
      return Interval::of_integers(std::max(a.low, b.low), std::max(a.high, b.high));
    default:
      break;
  }
  if (b.low <= 0) return kAnyInteger;  // divisors are positive, or nothing is said
  if (op == Op::floor_divide) {
    return integer_corners(a, b, [](auto x, auto y, auto* to) {
      *to = floor_divided(x, y);
      return false;
    });
  }
  // Within one period, the remainder goes with the number.
  if (b.low == b.high && floor_divided(a.low, b.low) == floor_divided(a.high, b.low)) {
    return Interval::of_integers(remainder_of(a.low, b.low), remainder_of(a.high, b.low));
  }
  if (a.low >= 0) return Interval::of_integers(0, std::min(a.high, b.high - 1));
  return Interval::of_integers(0, b.high - 1);
}

Interval real_arithmetic(Op op, const Interval& a, const Interval& b) {
  const bool nan = a.may_be_nan || b.may_be_nan;
  if (op == Op::minimum || op == Op::maximum) {
    const auto chosen = [op](double x, double y) { return op == Op::minimum ? std::min(x, y) : std::max(x, y); };
    return Interval::of_reals(chosen(a.real_low, b.real_low), chosen(a.real_high, b.real_high), nan);
  }
  const bool divides = op == Op::divide;
  if (op == Op::floor_divide || op == Op::remainder || (divides && b.real_low <= 0 && b.real_high >= 0))
    return kAnyReal;
  double low = kUnbounded, high = -kUnbounded;
  for (const double x : {a.real_low, a.real_high}) {
    for (const double y : {b.real_low, b.real_high}) {
      double result = 0;
      with_arithmetic<double>(op, [&](const auto& f) { result = f(x, y); });
      if (std::isnan(result)) return kAnyReal;  // 0 * inf, inf - inf
      low = std::min(low, result);
      high = std::max(high, result);
    }
  }
  // Within, an infinity may still meet a 0 or its opposite.
  const auto infinite = [](const Interval& i) { return std::isinf(i.real_low) || std::isinf(i.real_high); };
  return rounded_outwards(low, high, nan || infinite(a) || infinite(b));
}

Interval unary(const Node& node, const Interval& a) {
  if (node.type == Type::integer) {
    if (a.low == kLowest) return kAnyInteger;
    if (node.op == Op::negate) return Interval::of_integers(-a.high, -a.low);
    return Interval::of_integers(a.low > 0 ? a.low : (a.high < 0 ? -a.high : 0), std::max(-a.low, a.high));
  }
  const bool nan = a.may_be_nan;
  if (node.op == Op::negate) return Interval::of_reals(-a.real_high, -a.real_low, nan);
  if (node.op == Op::absolute) {
    const double low = a.real_low > 0 ? a.real_low : (a.real_high < 0 ? -a.real_high : 0.0);
    return Interval::of_reals(low, std::max(-a.real_low, a.real_high), nan);
  }
  if (node.op == Op::log && !(a.real_low > 0)) return kAnyReal;
  double low = 0, high = 0;
  with_unary<double>(node.op, [&](const auto& f) { low = f(a.real_low), high = f(a.real_high); });
  Interval result = rounded_outwards(low, high, nan, 4);
  if (node.op == Op::tanh) {
    result.real_low = std::max(result.real_low, -1.0);
    result.real_high = std::min(result.real_high, 1.0);
  } else if (node.op != Op::log) {
    result.real_low = std::max(result.real_low, 0.0);
  }
  return result;
}

/// Comparisons of numbers, by the least and the greatest of each.
template <typename Number>
Interval compared(Op op, std::array<Number, 2> a, std::array<Number, 2> b, bool may_be_nan) {
  const auto swapped = [](Interval i) { return Interval::of_integers(1 - i.high, 1 - i.low); };
  switch (op) {
    case Op::less:
      return of_bool(may_be_nan || !(a[1] < b[0]), a[0] < b[1]);
    case Op::less_equal:
      return of_bool(may_be_nan || !(a[1] <= b[0]), a[0] <= b[1]);
    case Op::equal:
      return of_bool(may_be_nan || a[0] != a[1] || b[0] != b[1] || a[0] != b[0], a[0] <= b[1] && b[0] <= a[1]);
    default:
      return swapped(compared(Op::equal, a, b, may_be_nan));
  }
}

Interval of_constant(const Node& node) {
  if (node.type != Type::real) return Interval::of_integers(node.integer(), node.integer());
  return std::isnan(node.real()) ? kAnyReal : rounded_outwards(node.real(), node.real(), false);
}

/// An int as a float: exact up to 2^24 in fp32, and rounded twice at most beyond.
Interval widened(const Interval& a) {
  constexpr std::int64_t kExact = std::int64_t{1} << 24;
  const bool exact = a.low >= -kExact && a.high <= kExact;
  return rounded_outwards(static_cast<double>(a.low), static_cast<double>(a.high), false, exact ? 1 : 2);
}

/// Bounds of what has operands.
Interval combined(const Node& node, Type of_operands, const Interval& a, const Interval& b, const Interval& c) {
  switch (node.op) {
    case Op::to_real:
      return widened(a);
    case Op::logical_not:
      return Interval::of_integers(1 - a.high, 1 - a.low);
    case Op::logical_and:
      return Interval::of_integers(a.low & b.low, a.high & b.high);
    case Op::logical_or:
      return Interval::of_integers(a.low | b.low, a.high | b.high);
    case Op::select:
      return a.always() ? b : (a.never() ? c : united(b, c));
    default:
      break;
  }
  if (operator_of(node.op).typing == Typing::ordering || operator_of(node.op).typing == Typing::equality) {
    if (of_operands != Type::real) return compared<std::int64_t>(node.op, {a.low, a.high}, {b.low, b.high}, false);
    return compared<double>(node.op, {a.real_low, a.real_high}, {b.real_low, b.real_high},
                            a.may_be_nan || b.may_be_nan);
  }
  if (node.operand_count == 1) return unary(node, a);
  return node.type == Type::integer ? integer_arithmetic(node.op, a, b) : real_arithmetic(node.op, a, b);
}

}  // namespace

Interval united(const Interval& a, const Interval& b) {
  return {std::min(a.low, b.low), std::max(a.high, b.high), std::min(a.real_low, b.real_low),
          std::max(a.real_high, b.real_high), a.may_be_nan || b.may_be_nan};
}

Interval any_of(Type type) {
  if (type == Type::real) return kAnyReal;
  return type == Type::integer ? kAnyInteger : kAnyBool;
}

Interval any_element_of(DType dtype) {
  if (dtype == DType::u8) return Interval::of_integers(0, 255);
  if (dtype == DType::i32) return any_integer_of(32);
  return any_of(table_type(dtype, "table"));
}

std::vector<Interval> bounds_of_nodes(const Expression& expression, std::span<const Interval> inputs,
                                      const LookUpBounds& look_up) {
  const std::vector<Node>& nodes = expression.nodes();
  std::vector<Interval> known;
  known.reserve(nodes.size());
  for (const Node& node : nodes) {
    const auto operand = [&](std::size_t i) { return known[node.operands[i < node.operand_count ? i : 0]]; };
    if (node.op == Op::constant) {
      known.push_back(of_constant(node));
    } else if (node.op == Op::variable) {
      known.push_back(inputs[node.index]);
    } else if (node.op == Op::lookup) {
      const std::array<Interval, kTableRank> indices{operand(0), operand(1), operand(2), operand(3)};
      known.push_back(look_up ? look_up(node.index, std::span(indices.data(), node.operand_count)) : any_of(node.type));
    } else {
      known.push_back(combined(node, nodes[node.operands[0]].type, operand(0), operand(1), operand(2)));
    }
  }
  return known;
}

Interval bounds(const Expression& expression, std::span<const Interval> inputs, const LookUpBounds& look_up) {
  return bounds_of_nodes(expression, inputs, look_up).back();
}

}  // namespace tilewise::expression
