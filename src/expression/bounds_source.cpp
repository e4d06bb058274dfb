// Terms as calls on bounds; see bounds_source.hpp.
#include "expression/bounds_source.hpp"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "expression/operators.hpp"

namespace tilewise::expression {
namespace {

using core::concat;

/// The device's function of bounds; empty where it has none.
std::string_view function_of(Op op) {
  switch (op) {
    case Op::negate:
      return "negated_bounds";
    case Op::absolute:
      return "absolute_bounds";
    case Op::add:
      return "added_bounds";
    case Op::subtract:
      return "subtracted_bounds";
    case Op::multiply:
      return "multiplied_bounds";
    case Op::floor_divide:
      return "floor_divided_bounds";
    case Op::remainder:
      return "remainder_bounds";
    case Op::minimum:
      return "minimum_bounds";
    case Op::maximum:
      return "maximum_bounds";
    case Op::logical_not:
      return "not_bounds";
    case Op::logical_and:
      return "and_bounds";
    case Op::logical_or:
      return "or_bounds";
    case Op::less:
      return "less_bounds";
    case Op::less_equal:
      return "less_equal_bounds";
    case Op::equal:
      return "equal_bounds";
    case Op::select:
      return "selected_bounds";
    default:
      return {};
  }
}

class BoundsPrinter {
 public:
  BoundsPrinter(const Expression& expression, std::span<const Interval> inputs, std::span<const DeviceTable> tables)
      : expression_(expression), nodes_(expression.nodes()), tables_(tables), narrows_(nodes_.size()) {
    known_ = bounds_of_nodes(expression, inputs, [tables](std::uint32_t table, std::span<const Interval>) {
      return tables[table].empty ? Interval{} : any_element_of(tables[table].dtype);
    });
    for (std::size_t i = 0; i < nodes_.size(); ++i) narrows_[i] = narrows(i);
  }

  [[nodiscard]] std::string text() const {
    if (!narrows_.back()) return {};
    std::vector<bool> needed(nodes_.size());
    needed.back() = true;
    for (std::size_t i = nodes_.size(); i-- > 0;) {
      if (!needed[i] || !narrows_[i]) continue;
      for (std::size_t n = 0; n < nodes_[i].operand_count; ++n) needed[nodes_[i].operands[n]] = true;
    }
    std::string text;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (needed[i]) text += concat("    const Bounds t", i, " = ", term(i), ";\n");
    return text + concat("    return t", nodes_.size() - 1, ";\n");
  }

 private:
  /// Whether a term's bounds say more in a tile than of all inputs.
  [[nodiscard]] bool narrows(std::size_t index) const {
    const Node& node = nodes_[index];
    if (node.type == Type::real || node.op == Op::constant) return false;
    if (node.op == Op::variable) return true;
    const auto operands = std::span(node.operands).first(node.operand_count);
    const auto is_real = [this](std::uint32_t operand) { return nodes_[operand].type == Type::real; };
    if (std::ranges::any_of(operands, is_real)) return false;
    if (std::ranges::none_of(operands, [this](std::uint32_t operand) { return narrows_[operand]; })) return false;
    if (node.op == Op::lookup) return !tables_[node.index].empty;
    if (function_of(node.op).empty() && node.op != Op::not_equal) return false;
    if (node.type == Type::boolean || node.op == Op::select) return true;
    // What may wrap around, or is divided by what may be 0 or less.
    const bool divides = node.op == Op::floor_divide || node.op == Op::remainder;
    return !(divides && known_[node.operands[1]].low <= 0) && is_bounded(known_[index]);
  }
  [[nodiscard]] static bool is_bounded(const Interval& integers) {
    return integers.low != std::numeric_limits<std::int64_t>::min() &&
           integers.high != std::numeric_limits<std::int64_t>::max();
  }

  [[nodiscard]] static std::string number(std::int64_t value) {
    if (value == std::numeric_limits<std::int64_t>::min()) return "-int64_t{9223372036854775807} - 1";
    return concat(value < 0 ? "-" : "", "int64_t{", value < 0 ? -value : value, "}");
  }
  [[nodiscard]] static std::string text_of(const Interval& known) {
    return concat("Bounds{", number(known.low), ", ", number(known.high), "}");
  }

  [[nodiscard]] std::string term(std::size_t index) const {
    const Node& node = nodes_[index];
    if (!narrows_[index]) return text_of(known_[index]);
    if (node.op == Op::variable) return expression_.signature().variables[node.index].name;
    std::string list;
    for (std::size_t n = 0; n < node.operand_count; ++n) list += concat(n == 0 ? "" : ", ", "t", node.operands[n]);
    if (node.op == Op::lookup) {
      const DType dtype = tables_[node.index].dtype;
      return concat("look_up_bounds<Machine, ", table_element_name(dtype), ">(tables[", node.index, "], ",
                    text_of(any_element_of(dtype)), ", ", list, ")");
    }
    if (node.op == Op::not_equal) return concat("not_bounds(equal_bounds(", list, "))");
    return concat(function_of(node.op), "(", list, ")");
  }

  const Expression& expression_;
  const std::vector<Node>& nodes_;
  std::span<const DeviceTable> tables_;
  std::vector<Interval> known_;
  std::vector<bool> narrows_;
};

}  // namespace

std::string bounds_source(const Expression& expression, std::span<const Interval> inputs,
                          std::span<const DeviceTable> tables) {
  return BoundsPrinter(expression, inputs, tables).text();
}

}  // namespace tilewise::expression
