// An expression as a value: what a small function of numbers and of captured tensors computes. It is made by a Builder
// or parsed from text, and is one list of nodes without repetitions, so that equal functions are equal lists.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/visibility.hpp"
#include "expression/operator_names.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::expression {

[[nodiscard]] TILEWISE_INTERNAL std::string_view to_string(Type type);

/// Operands are places of nodes before this one.
struct Node {
  Op op = Op::constant;
  Type type = Type::boolean;
  std::uint8_t operand_count = 0;
  std::uint32_t index = 0;  ///< of a variable or a table in the signature
  std::array<std::uint32_t, kTableRank> operands{};
  std::uint64_t bits = 0;  ///< of a constant: an int64, a double, or 0 and 1

  [[nodiscard]] std::int64_t integer() const { return std::bit_cast<std::int64_t>(bits); }
  [[nodiscard]] double real() const { return std::bit_cast<double>(bits); }
  friend bool operator==(const Node&, const Node&) = default;
};

struct Variable {
  std::string name;
  Type type = Type::real;
  friend bool operator==(const Variable&, const Variable&) = default;
};

/// A captured tensor: what a look-up gives, and how many indices it takes.
struct Table {
  Type type = Type::real;
  int rank = 1;
  friend bool operator==(const Table&, const Table&) = default;
};

/// Throws Error (invalid_type) for an element type that no table has; the message begins with `name`.
[[nodiscard]] TILEWISE_INTERNAL Type table_type(DType dtype, std::string_view name);

/// What an expression may speak of: variables by their names, and tables, which are called table0, table1, ...
struct Signature {
  std::vector<Variable> variables;
  std::vector<Table> tables;
  friend bool operator==(const Signature&, const Signature&) = default;
};

class Expression {
 public:
  Expression(Signature signature, std::vector<Node> nodes);

  [[nodiscard]] const Signature& signature() const { return signature_; }
  /// In an order in which operands come first; the last one is the result.
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
  [[nodiscard]] const Node& result() const { return nodes_.back(); }
  [[nodiscard]] TILEWISE_INTERNAL bool speaks_of(std::string_view variable) const;

  /// Equal functions of equal signatures, up to laws of arithmetic that a Builder does not know.
  friend bool operator==(const Expression&, const Expression&) = default;

 private:
  Signature signature_;
  std::vector<Node> nodes_;
};

[[nodiscard]] std::size_t hash_value(const Node& node) noexcept;
[[nodiscard]] std::size_t hash_value(const Expression& expression) noexcept;

/// The one text of an expression, without blanks, which parse() reads back: "score+table0[h,min(t0,127)]". What is used
/// more than once is named first: "t0=q_idx-kv_idx;t0*t0".
[[nodiscard]] TILEWISE_INTERNAL std::string to_string(const Expression& expression);

}  // namespace tilewise::expression
