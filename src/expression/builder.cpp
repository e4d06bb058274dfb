// Typing and sharing: one node for each different term.
#include "expression/builder.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "core/message.hpp"
#include "core/spelling.hpp"
#include "expression/fold.hpp"
#include "expression/operators.hpp"

namespace tilewise::expression {
namespace {

/// "table0", ..., as messages list them.
std::vector<std::string> names_of(const Signature& signature) {
  std::vector<std::string> names;
  for (const Variable& variable : signature.variables) names.push_back(variable.name);
  for (std::size_t i = 0; i < signature.tables.size(); ++i) names.push_back(core::concat("table", i));
  return names;
}

/// The type that two numbers meet in.
Type wider(Type a, Type b) { return a == Type::real || b == Type::real ? Type::real : Type::integer; }

}  // namespace

std::uint32_t variable_index(const Signature& signature, std::string_view argument, std::string_view name) {
  const auto found = std::ranges::find(signature.variables, name, &Variable::name);
  if (found != signature.variables.end()) return static_cast<std::uint32_t>(found - signature.variables.begin());
  const std::vector<std::string> names = names_of(signature);
  const std::vector<std::string_view> known(names.begin(), names.end());
  core::invalid_argument(argument, ": must speak of ", core::listed(known), core::did_you_mean(name, known), " (got ",
                         core::quoted(name), ")");
}

Builder::Builder(Signature signature, std::string argument, Limits limits)
    : signature_(std::move(signature)), argument_(std::move(argument)), limits_(limits) {}

std::size_t Builder::add_table(const Table& table) {
  if (table.rank < 1 || table.rank > kTableRank) {
    core::invalid_argument(argument_, ": captured tensors must have 1 to ", kTableRank, " dimensions (got ", table.rank,
                           ")");
  }
  signature_.tables.push_back(table);
  return signature_.tables.size() - 1;
}

Term Builder::add_node(const Node& node) {
  if (const auto found = places_.find(node); found != places_.end()) return {this, found->second};
  if (nodes_.size() == limits_.terms) {
    core::invalid_argument(argument_, ": must have <= ", limits_.terms, " different terms (got more)");
  }
  std::uint32_t depth = 1;
  for (int i = 0; i < node.operand_count; ++i) {
    depth = std::max(depth, depths_[node.operands[static_cast<std::size_t>(i)]] + 1);
  }
  if (depth > limits_.depth) {
    core::invalid_argument(argument_, ": terms must stand <= ", limits_.depth, " deep within one another (got more)");
  }
  const auto index = static_cast<std::uint32_t>(nodes_.size());
  nodes_.push_back(node);
  depths_.push_back(depth);
  places_.emplace(node, index);
  return {this, index};
}

Term Builder::constant(Type type, std::uint64_t bits) { return add_node({.type = type, .bits = bits}); }
Term Builder::boolean(bool value) { return constant(Type::boolean, value ? 1 : 0); }
Term Builder::integer(std::int64_t value) { return constant(Type::integer, std::bit_cast<std::uint64_t>(value)); }
Term Builder::real(double value) {
  if (value != value) value = std::numeric_limits<double>::quiet_NaN();  // one NaN, as folding has it
  return constant(Type::real, std::bit_cast<std::uint64_t>(value));
}

Term Builder::variable(std::string_view name) {
  const std::uint32_t index = variable_index(signature_, argument_, name);
  return add_node({.op = Op::variable, .type = signature_.variables[index].type, .index = index});
}

Term Builder::number(Type type, Term term) {
  const Type own = this->type(term);
  if (own == type) return term;
  if (own == Type::boolean) {
    const bool whole = type == Type::integer;
    return apply(Op::select, {term, whole ? integer(1) : real(1.0), whole ? integer(0) : real(0.0)});
  }
  if (type != Type::real) core::invalid_argument(argument_, ": a float must not stand for an int (got one)");
  return apply(Op::to_real, {term});
}

void Builder::refuse_types(Op op, std::span<const Term> operands, std::string_view expected) const {
  std::string got;
  for (const Term operand : operands) got += core::concat(got.empty() ? "" : ", ", to_string(type(operand)));
  core::invalid_argument(argument_, ": '", operator_of(op).word, "' takes ", expected, " (got ", got, ")");
}

/// Brings operands to the types that `op` takes; what its result is.
Type Builder::promote(Op op, std::span<Term> operands) {
  const Typing typing = operator_of(op).typing;
  const auto is_boolean = [this](Term term) { return type(term) == Type::boolean; };
  const auto meet = [&](std::span<Term> numbers) {
    Type met = Type::integer;
    for (const Term term : numbers) met = wider(met, type(term));
    for (Term& term : numbers) term = number(met, term);
    return met;
  };
  switch (typing) {
    case Typing::real:
      // What becomes a float is no operand of a float's operation.
      if (op == Op::to_real) return Type::real;
      for (Term& term : operands) term = number(Type::real, term);
      return Type::real;
    case Typing::logic:
      if (!std::ranges::all_of(operands, is_boolean)) refuse_types(op, operands, "bools; compare numbers first");
      return Type::boolean;
    case Typing::choice:
      if (!is_boolean(operands[0])) refuse_types(op, operands, "a bool and two values");
      return is_boolean(operands[1]) && is_boolean(operands[2]) ? Type::boolean : meet(operands.subspan(1));
    case Typing::equality:
      if (!std::ranges::all_of(operands, is_boolean)) meet(operands);
      return Type::boolean;
    default:
      if (std::ranges::all_of(operands, is_boolean)) {
        refuse_types(op, operands, "numbers; select(condition, 1, 0) makes one of a bool");
      }
      const Type met = meet(operands);
      return typing == Typing::ordering ? Type::boolean : met;
  }
}

Term Builder::apply(Op op, std::span<const Term> operands) {
  const Operator& facts = operator_of(op);
  if (facts.spelling == Spelling::none || operands.size() != static_cast<std::size_t>(facts.operand_count)) {
    core::invalid_argument(argument_, ": '", facts.word, "' takes ", facts.operand_count, " operands (got ",
                           operands.size(), ")");
  }
  if (op == Op::to_real && type(operands[0]) != Type::integer) return number(Type::real, operands[0]);
  std::array<Term, 3> terms{};
  std::ranges::copy(operands, terms.begin());
  const std::span<Term> promoted(terms.data(), operands.size());
  Node node{.op = op, .type = promote(op, promoted), .operand_count = static_cast<std::uint8_t>(operands.size())};
  std::array<Node, 3> nodes;
  for (std::size_t i = 0; i < promoted.size(); ++i) {
    node.operands[i] = promoted[i].index;
    nodes[i] = this->node(promoted[i]);
  }
  const std::span<const Node> known(nodes.data(), operands.size());
  if (const auto same = unchanged(op, known)) return promoted[*same];
  if (std::ranges::all_of(known, [](const Node& n) { return n.op == Op::constant; })) {
    const bool divides = op == Op::floor_divide || op == Op::remainder;
    if (divides && node.type == Type::integer && nodes[1].integer() == 0) {
      core::invalid_argument(argument_, ": '", facts.word, "' of constants must not divide by 0 (got ",
                             nodes[0].integer(), " ", facts.word, " 0)");
    }
    return add_node(folded(argument_, op, node.type, known, limits_.finite));
  }
  return add_node(node);
}

Term Builder::lookup(std::size_t index, std::span<const Term> indices) {
  if (index >= signature_.tables.size()) {
    core::invalid_argument(argument_, ": must look up one of ", signature_.tables.size(),
                           " captured tensors (got table", index, ")");
  }
  const Table& table = signature_.tables[index];
  if (indices.size() != static_cast<std::size_t>(table.rank)) {
    core::invalid_argument(argument_, ": table", index, " takes ", table.rank, " indices (got ", indices.size(), ")");
  }
  Node node{.op = Op::lookup,
            .type = table.type,
            .operand_count = static_cast<std::uint8_t>(indices.size()),
            .index = static_cast<std::uint32_t>(index)};
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (type(indices[i]) != Type::integer) {
      core::invalid_argument(argument_, ": table", index, " takes ints as indices (got ", to_string(type(indices[i])),
                             ")");
    }
    node.operands[i] = indices[i].index;
  }
  return add_node(node);
}

Expression Builder::finish(Term term, Type type) const {
  const Type own = this->type(term);
  if (own != type) {
    core::invalid_argument(argument_, ": must be a ", to_string(type), " (got ", to_string(own), ")");
  }
  // What the result needs, in the order of its text, so that equal expressions have equal lists.
  std::vector<Node> nodes;
  std::vector<std::uint32_t> places(nodes_.size(), UINT32_MAX);
  std::vector<std::pair<std::uint32_t, int>> path{{term.index, 0}};
  while (!path.empty()) {
    auto& [index, next] = path.back();
    const Node& node = nodes_[index];
    while (next < node.operand_count && places[node.operands[static_cast<std::size_t>(next)]] != UINT32_MAX) ++next;
    if (next < node.operand_count) {
      path.emplace_back(node.operands[static_cast<std::size_t>(next)], 0);
      continue;
    }
    Node renumbered = node;
    for (int i = 0; i < node.operand_count; ++i) {
      auto& operand = renumbered.operands[static_cast<std::size_t>(i)];
      operand = places[operand];
    }
    places[index] = static_cast<std::uint32_t>(nodes.size());
    nodes.push_back(renumbered);
    path.pop_back();
  }
  return {signature_, std::move(nodes)};
}

}  // namespace tilewise::expression
