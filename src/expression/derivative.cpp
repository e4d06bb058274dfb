// Forward mode: beside each term goes what it changes by, or nothing where it does not.
#include "expression/derivative.hpp"

#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "core/message.hpp"
#include "expression/builder.hpp"
#include "expression/terms.hpp"

namespace tilewise::expression {
namespace {

using Change = std::optional<Term>;

/// A derivative has several terms for each one of the expression's, and whoever divides a score by 0 has one too.
constexpr Limits kDerivativeLimits{16 * Limits{}.terms, 8 * Limits{}.depth, false};

class Differentiation {
 public:
  /// By the nodes for which `is_it` holds: one of the expression's, or all of a variable.
  template <typename Is>
  Differentiation(const Expression& expression, std::string_view argument, const Is& is_it)
      : expression_(expression), build_(expression.signature(), std::string(argument), kDerivativeLimits) {
    for (const Node& node : expression_.nodes()) {
      const Term term = copied(node);
      terms_.push_back(term);
      changes_.push_back(is_it(node, terms_.size() - 1) ? Change(build_.real(1.0)) : change_of(node, term));
    }
  }

  [[nodiscard]] bool changes() const { return changes_.back().has_value(); }
  Expression result() { return build_.finish(changes_.back().value_or(build_.real(0.0)), Type::real); }
  /// What a node of the expression gives, by itself.
  [[nodiscard]] Expression part(std::uint32_t node, Type type) const { return build_.finish(terms_[node], type); }

 private:
  [[nodiscard]] Term operand(const Node& node, std::size_t i) const { return terms_[node.operands[i]]; }
  [[nodiscard]] Change change(const Node& node, std::size_t i) const { return changes_[node.operands[i]]; }

  Term copied(const Node& node) {
    std::vector<Term> operands;
    for (std::size_t i = 0; i < node.operand_count; ++i) operands.push_back(operand(node, i));
    switch (node.op) {
      case Op::constant:
        if (node.type == Type::real) return build_.real(node.real());
        return node.type == Type::integer ? build_.integer(node.integer()) : build_.boolean(node.bits != 0);
      case Op::variable:
        return build_.variable(expression_.signature().variables[node.index].name);
      case Op::lookup:
        return build_.lookup(node.index, operands);
      default:
        return build_.apply(node.op, operands);
    }
  }

  /// Of a sum; `sign` is that of b.
  static Change sum(Change a, Change b, bool minus) {
    if (!b) return a;
    if (!a) return minus ? -*b : *b;
    return minus ? *a - *b : *a + *b;
  }
  static Change times(Change a, Term factor) { return a ? Change(*a * factor) : std::nullopt; }

  Change chosen(Term condition, Change a, Change b) {
    if (!a && !b) return std::nullopt;
    const Term zero = build_.real(0.0);
    return select(condition, a.value_or(zero), b.value_or(zero));
  }

  Change change_of(const Node& node, Term value) {
    if (node.type != Type::real || node.op == Op::constant || node.op == Op::lookup || node.op == Op::to_real ||
        node.op == Op::variable) {
      return std::nullopt;
    }
    return node.operand_count == 1 ? change_of_unary(node, value) : change_of_others(node, value);
  }

  Change change_of_unary(const Node& node, Term value) {
    const Term a = operand(node, 0), zero = build_.real(0.0);
    const Change da = change(node, 0);
    if (!da) return std::nullopt;
    switch (node.op) {
      case Op::negate:
        return -*da;
      case Op::absolute:
        return select(a > zero, *da, select(a < zero, -*da, zero));
      case Op::exp:
        return *da * value;
      case Op::exp2:
        return *da * (value * build_.real(std::numbers::ln2));
      case Op::log:
        return *da / a;
      default:  // tanh
        return *da * (build_.real(1.0) - value * value);
    }
  }

  Change change_of_others(const Node& node, Term value) {
    const Term a = operand(node, 0), b = operand(node, 1);
    const Change da = change(node, 0), db = change(node, 1);
    switch (node.op) {
      case Op::add:
      case Op::subtract:
        return sum(da, db, node.op == Op::subtract);
      case Op::multiply:
        return sum(times(da, b), times(db, a), false);
      case Op::divide:
        return sum(da ? Change(*da / b) : std::nullopt, db ? Change(*db * value / b) : std::nullopt, true);
      case Op::remainder:
        return sum(da, db ? Change(*db * floor_divide(a, b)) : std::nullopt, true);
      case Op::minimum:
        return chosen(a <= b, da, db);
      case Op::maximum:
        return chosen(a >= b, da, db);
      case Op::select:
        return chosen(a, db, change(node, 2));
      default:  // floor_divide
        return std::nullopt;
    }
  }

  const Expression& expression_;
  Builder build_;
  std::vector<Term> terms_;
  std::vector<Change> changes_;
};

}  // namespace

Expression derivative(const Expression& expression, std::string_view by, std::string_view argument) {
  const std::uint32_t variable = variable_index(expression.signature(), argument, by);
  const Type type = expression.signature().variables[variable].type;
  if (expression.result().type != Type::real || type != Type::real) {
    core::invalid_argument(argument, ": a derivative must be a float's by a float (got ",
                           to_string(expression.result().type), " by ", to_string(type), ")");
  }
  return Differentiation(
             expression, argument,
             [variable](const Node& node, std::size_t) { return node.op == Op::variable && node.index == variable; })
      .result();
}

std::vector<LookUpDerivative> look_up_derivatives(const Expression& expression, std::string_view argument) {
  std::vector<LookUpDerivative> derivatives;
  const std::vector<Node>& nodes = expression.nodes();
  for (std::size_t place = 0; place < nodes.size(); ++place) {
    const Node& node = nodes[place];
    if (node.op != Op::lookup || node.type != Type::real) continue;
    Differentiation by_it(expression, argument, [place](const Node&, std::size_t at) { return at == place; });
    if (!by_it.changes()) continue;
    LookUpDerivative& derivative = derivatives.emplace_back(LookUpDerivative{node.index, by_it.result(), {}});
    for (std::size_t d = 0; d < node.operand_count; ++d)
      derivative.indices.push_back(by_it.part(node.operands[d], Type::integer));
  }
  return derivatives;
}

}  // namespace tilewise::expression
