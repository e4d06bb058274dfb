// Makes expressions term by term: types them, folds constants, shares what is equal and holds them to limits.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/visibility.hpp"
#include "expression/expression.hpp"

namespace tilewise::expression {

/// Terms that an expression may have, how many may stand within one another, and whether finite constants must give
/// finite ones.
struct Limits {
  std::size_t terms = 1024;
  std::uint32_t depth = 200;
  bool finite = true;
};

class Builder;

/// A part of the expression that a builder makes; it may be used any number of times, with that builder alone.
struct Term {
  Builder* builder = nullptr;
  std::uint32_t index = 0;
};

class TILEWISE_INTERNAL Builder {
 public:
  /// Messages begin with `argument`.
  Builder(Signature signature, std::string argument, Limits limits = {});
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  [[nodiscard]] const Signature& signature() const { return signature_; }
  [[nodiscard]] const std::string& argument() const { return argument_; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] const Node& node(Term term) const { return nodes_[term.index]; }
  [[nodiscard]] Type type(Term term) const { return node(term).type; }

  /// Adds a captured tensor to the signature, and says which it is.
  [[nodiscard]] std::size_t add_table(const Table& table);

  [[nodiscard]] Term boolean(bool value);
  [[nodiscard]] Term integer(std::int64_t value);
  [[nodiscard]] Term real(double value);
  /// Throws where the signature has no such variable.
  [[nodiscard]] Term variable(std::string_view name);
  /// Throws for types that the operator does not take, and for constants that overflow.
  [[nodiscard]] Term apply(Op op, std::span<const Term> operands);
  [[nodiscard]] Term apply(Op op, std::initializer_list<Term> operands) {
    return apply(op, std::span<const Term>(operands.begin(), operands.size()));
  }
  /// table<index>[indices...]. Throws where there is no such table, or it has another rank.
  [[nodiscard]] Term lookup(std::size_t index, std::span<const Term> indices);
  /// A number as one of `type`, int or float; a bool becomes 1 or 0. Throws for a float that were to become an int.
  [[nodiscard]] Term number(Type type, Term term);

  /// The expression whose result `term` is. Throws where that is of another type.
  [[nodiscard]] Expression finish(Term term, Type type) const;

 private:
  struct NodeHash {
    std::size_t operator()(const Node& node) const noexcept { return hash_value(node); }
  };

  [[nodiscard]] Term constant(Type type, std::uint64_t bits);
  [[nodiscard]] Term add_node(const Node& node);
  [[nodiscard]] Type promote(Op op, std::span<Term> operands);
  void refuse_types(Op op, std::span<const Term> operands, std::string_view expected) const;

  Signature signature_;
  std::string argument_;
  Limits limits_;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> depths_;
  std::unordered_map<Node, std::uint32_t, NodeHash> places_;
};

/// The signature's number of a variable. Throws where it has none of this name.
[[nodiscard]] std::uint32_t variable_index(const Signature& signature, std::string_view argument,
                                           std::string_view name);

}  // namespace tilewise::expression
