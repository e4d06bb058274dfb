// Printing. What is implied is not said: an int beside a float becomes one without float(), and brackets stand only
// where precedence asks for them.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "expression/expression.hpp"
#include "expression/operators.hpp"

namespace tilewise::expression {
namespace {

class Printer {
 public:
  explicit Printer(const Expression& expression)
      : expression_(expression), nodes_(expression.nodes()), names_(nodes_.size()) {
    std::vector<int> uses(nodes_.size());
    for (const Node& node : nodes_) {
      for (int i = 0; i < node.operand_count; ++i) ++uses[operand_index(node, i)];
    }
    int bound = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (uses[i] < 2 || is_plain(nodes_[i])) continue;
      text_ += core::concat("t", bound, "=");
      print(i, kLoosest);
      text_ += ';';
      names_[i] = core::concat("t", bound++);
    }
    print(nodes_.size() - 1, kLoosest);
  }

  [[nodiscard]] std::string text() && { return std::move(text_); }

 private:
  [[nodiscard]] static std::size_t operand_index(const Node& node, int i) {
    return node.operands[static_cast<std::size_t>(i)];
  }
  /// What a name would make no shorter.
  [[nodiscard]] bool is_plain(const Node& node) const {
    return is_leaf(node) || (node.op == Op::to_real && is_leaf(nodes_[node.operands[0]]));
  }
  /// An int that its operator makes a float of.
  [[nodiscard]] bool is_widened(std::size_t index) const {
    return nodes_[index].op == Op::to_real && names_[index].empty();
  }
  /// Whether reading operand i of `node` without its float() gives the same.
  [[nodiscard]] bool is_implied(const Node& node, int i) const {
    if (!is_widened(operand_index(node, i))) return false;
    const Typing typing = operator_of(node.op).typing;
    if (typing == Typing::real) return true;
    for (int other = typing == Typing::choice ? 1 : 0; other < node.operand_count; ++other) {
      const std::size_t index = operand_index(node, other);
      if (other != i && nodes_[index].type == Type::real && !is_widened(index)) return true;
    }
    return false;
  }

  void print(std::size_t index, int loosest) {
    if (!names_[index].empty()) {
      text_ += names_[index];
      return;
    }
    const Node& node = nodes_[index];
    switch (node.op) {
      case Op::constant:
        return print_constant(node, loosest);
      case Op::variable:
        text_ += expression_.signature().variables[node.index].name;
        return;
      case Op::lookup:
        text_ += core::concat("table", node.index);
        return print_list(node, '[', ']');
      default:
        break;
    }
    const Operator& facts = operator_of(node.op);
    if (facts.spelling == Spelling::function) {
      text_ += facts.word;
      return print_list(node, '(', ')');
    }
    const bool brackets = facts.precedence < loosest;
    if (brackets) text_ += '(';
    if (facts.spelling == Spelling::infix) {
      // Of two comparisons side by side neither is within the other.
      print_operand(node, 0, facts.precedence + (facts.precedence == kComparison ? 1 : 0));
      text_ += facts.word;
      print_operand(node, 1, facts.precedence + 1);
    } else {
      text_ += facts.word;
      print_operand(node, 0, facts.precedence);
    }
    if (brackets) text_ += ')';
  }

  void print_operand(const Node& node, int i, int loosest) {
    const std::size_t index = operand_index(node, i);
    print(is_implied(node, i) ? nodes_[index].operands[0] : index, loosest);
  }

  void print_list(const Node& node, char opening, char closing) {
    text_ += opening;
    for (int i = 0; i < node.operand_count; ++i) {
      if (i > 0) text_ += ',';
      print_operand(node, i, kLoosest);
    }
    text_ += closing;
  }

  void print_constant(const Node& node, int loosest) {
    if (node.type == Type::boolean) {
      text_ += node.bits != 0 ? "True" : "False";
      return;
    }
    std::string number;
    if (node.type == Type::integer) {
      core::append(number, node.integer());
    } else {
      core::append(number, node.real());
      // Else it would be an int.
      if (std::isfinite(node.real()) && number.find_first_of(".e") == std::string::npos) number += ".0";
    }
    const bool brackets = number.front() == '-' && loosest > kUnary;
    text_ += brackets ? core::concat("(", number, ")") : number;
  }

  const Expression& expression_;
  const std::vector<Node>& nodes_;
  std::vector<std::string> names_;
  std::string text_;
};

}  // namespace

std::string to_string(const Expression& expression) { return Printer(expression).text(); }

}  // namespace tilewise::expression
