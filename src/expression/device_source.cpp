// Terms as C++, in the words of device/attention/score_functions.h.
#include "expression/device_source.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "expression/operators.hpp"

namespace tilewise::expression {
namespace {

using core::concat;

constexpr Interval kNarrow = any_integer_of(32);

std::string real_text(double real) {
  const auto single = static_cast<float>(real);
  if (std::isnan(single)) return "kNotANumber";
  if (std::isinf(single)) return single < 0 ? "(-kInfinity)" : "kInfinity";
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.begin(), digits.end(), std::fabs(single), std::chars_format::hex).ptr;
  const std::string number = concat("0x", std::string_view(digits.data(), end), "f");
  return std::signbit(single) ? concat("(-", number, ")") : number;
}

/// What quotient() takes beside a constant divisor: its reciprocal as floats round it. Nothing where a quotient that is
/// corrected once might not be the nearest float: of a mantissa of ones, or where products overflow or vanish.
std::optional<float> exact_reciprocal(const Node& divisor) {
  constexpr std::uint32_t kMantissa = 0x7FFFFF;
  constexpr float kLeast = 1.0F, kMost = 0x1p100F;
  if (divisor.op != Op::constant || divisor.type != Type::real) return std::nullopt;
  const auto value = static_cast<float>(divisor.real());
  const bool in_range = std::fabs(value) >= kLeast && std::fabs(value) <= kMost;
  if (!in_range || (std::bit_cast<std::uint32_t>(value) & kMantissa) == kMantissa) return std::nullopt;
  return 1.0F / value;
}

std::string integer_text(std::int64_t value, bool narrow) {
  // The lowest numbers are no literals.
  if (value == kNarrow.low && narrow) return "(-2147483647 - 1)";
  if (value == std::numeric_limits<std::int64_t>::min()) return "(-int64_t{9223372036854775807} - 1)";
  const std::string number = narrow ? concat(value) : concat("int64_t{", value < 0 ? -value : value, "}");
  if (value >= 0) return number;
  return narrow ? concat("(", number, ")") : concat("(-", number, ")");
}

class DeviceWriter {
 public:
  DeviceWriter(const Expression& expression, std::span<const Interval> inputs, std::span<const DeviceTable> tables)
      : expression_(expression), nodes_(expression.nodes()), tables_(tables), names_(nodes_.size()) {
    bounds_ = bounds_of_nodes(expression, inputs, [tables](std::uint32_t table, std::span<const Interval>) {
      return tables[table].empty ? Interval{} : any_element_of(tables[table].dtype);
    });
    for (std::size_t i = 0; i < nodes_.size(); ++i) add(i);
    text_ += concat("    return ", names_.back(), ";\n");
  }

  [[nodiscard]] std::string text() && { return std::move(text_); }

 private:
  [[nodiscard]] bool is_narrow(std::size_t index) const { return fits_32_bits(bounds_[index]); }
  [[nodiscard]] std::string_view type_of(std::size_t index) const {
    if (nodes_[index].type == Type::boolean) return "bool";
    if (nodes_[index].type == Type::real) return "float";
    return is_narrow(index) ? "int32_t" : "int64_t";
  }

  void add(std::size_t index) {
    const Node& node = nodes_[index];
    if (node.op == Op::variable) {
      names_[index] = expression_.signature().variables[node.index].name;
    } else if (node.op == Op::constant) {
      names_[index] = constant_text(index);
    } else {
      names_[index] = concat("t", index);
      text_ += concat("    const ", type_of(index), " t", index, " = ", term_text(index), ";\n");
    }
  }

  [[nodiscard]] std::string constant_text(std::size_t index) const {
    const Node& node = nodes_[index];
    if (node.type == Type::boolean) return node.bits != 0 ? "true" : "false";
    return node.type == Type::real ? real_text(node.real()) : integer_text(node.integer(), is_narrow(index));
  }

  [[nodiscard]] std::string lookup_text(const Node& node) const {
    const DeviceTable& table = tables_[node.index];
    if (table.empty) return node.type == Type::boolean ? "false" : "0";
    std::string text = concat("look_up<Machine, ", table_element_name(table.dtype), ">(tables[", node.index, "]");
    for (std::size_t i = 0; i < node.operand_count; ++i) text += concat(", ", names_[node.operands[i]]);
    return text + ")";
  }

  /// In 32 bits where those hold the operands and the result.
  [[nodiscard]] std::string integer_term(std::size_t index, std::string_view function) const {
    const Node& node = nodes_[index];
    bool narrow = is_narrow(index);
    for (std::size_t i = 0; i < node.operand_count; ++i) narrow = narrow && is_narrow(node.operands[i]);
    const std::string call = concat(function, narrow ? "<int32_t>" : "<int64_t>", list(node));
    return is_narrow(index) && !narrow ? concat("static_cast<int32_t>(", call, ")") : call;
  }
  [[nodiscard]] std::string list(const Node& node) const {
    std::string text = "(";
    for (std::size_t i = 0; i < node.operand_count; ++i) text += concat(i == 0 ? "" : ", ", names_[node.operands[i]]);
    return text + ")";
  }

  [[nodiscard]] std::string term_text(std::size_t index) const {
    const Node& node = nodes_[index];
    const auto operand = [&](std::size_t i) -> const std::string& { return names_[node.operands[i]]; };
    const auto infix = [&](std::string_view word) { return concat(operand(0), " ", word, " ", operand(1)); };
    switch (node.op) {
      case Op::lookup:
        return lookup_text(node);
      case Op::to_real:
        return is_exact_in_floats(node.operands[0]) ? real_of_integer(node.operands[0])
                                                    : concat("static_cast<float>(", operand(0), ")");
      case Op::logical_not:
        return concat("!", operand(0));
      case Op::logical_and:
        return infix("&&");
      case Op::logical_or:
        return infix("||");
      case Op::less:
      case Op::less_equal:
      case Op::equal:
      case Op::not_equal:
        return infix(operator_of(node.op).word);
      case Op::select: {
        const std::string choice = concat(operand(0), " ? ", operand(1), " : ", operand(2));
        return node.type == Type::integer ? concat("static_cast<", type_of(index), ">(", choice, ")") : choice;
      }
      default:
        return node.type == Type::integer ? integer_term(index, integer_function(node.op)) : real_term(node);
    }
  }

  /// Whether floats hold an int and all that it is made of: sums of variables, as a rule.
  [[nodiscard]] bool is_exact_in_floats(std::size_t index) const {
    constexpr std::int64_t kMost = std::int64_t{1} << 24;
    const Node& node = nodes_[index];
    if (bounds_[index].low < -kMost || bounds_[index].high > kMost) return false;
    if (node.op == Op::variable || node.op == Op::constant) return node.type == Type::integer;
    const bool adds = node.op == Op::add || node.op == Op::subtract || node.op == Op::negate;
    if (!adds && node.op != Op::absolute && node.op != Op::minimum && node.op != Op::maximum) return false;
    return std::ranges::all_of(std::span(node.operands).first(node.operand_count),
                               [this](std::uint32_t operand) { return is_exact_in_floats(operand); });
  }
  /// Such an int, computed in floats. Conversions and sums of ints take instructions that kernels with matrix products
  /// have four times as little time for: here variables alone are converted, once for all that is made of them.
  [[nodiscard]] std::string real_of_integer(std::size_t index) const {
    const Node& node = nodes_[index];
    const auto operand = [&](std::size_t i) { return real_of_integer(node.operands[i]); };
    switch (node.op) {
      case Op::constant:
        return real_text(static_cast<double>(node.integer()));
      case Op::add:
        return concat("(", operand(0), " + ", operand(1), ")");
      case Op::subtract:
        return concat("(", operand(0), " - ", operand(1), ")");
      case Op::negate:
        return concat("(0.0f - ", operand(0), ")");  // not -0
      case Op::absolute:
        return concat("magnitude(", operand(0), ")");
      case Op::minimum:
        return concat("minimum<float>(", operand(0), ", ", operand(1), ")");
      case Op::maximum:
        return concat("maximum<float>(", operand(0), ", ", operand(1), ")");
      default:
        return concat("real_of(", names_[index], ")");
    }
  }

  [[nodiscard]] static std::string_view integer_function(Op op) {
    switch (op) {
      case Op::negate:
        return "negated";
      case Op::absolute:
        return "absolute_integer";
      case Op::add:
        return "added";
      case Op::subtract:
        return "subtracted";
      case Op::multiply:
        return "multiplied";
      case Op::floor_divide:
        return "floor_divided_integer";
      case Op::remainder:
        return "remainder_of_integer";
      case Op::minimum:
        return "minimum_of";
      default:
        return "maximum_of";
    }
  }

  /// Products are rounded by themselves: kernels of both passes have the same scores, whatever their compilers
  /// contract.
  [[nodiscard]] std::string real_term(const Node& node) const {
    switch (node.op) {
      case Op::negate:
        return concat("-", names_[node.operands[0]]);
      case Op::divide:
        if (const auto reciprocal = exact_reciprocal(nodes_[node.operands[1]])) {
          return concat("quotient(", names_[node.operands[0]], ", ", names_[node.operands[1]], ", ",
                        real_text(*reciprocal), ")");
        }
        [[fallthrough]];
      case Op::add:
      case Op::subtract:
        return concat(names_[node.operands[0]], " ", operator_of(node.op).word, " ", names_[node.operands[1]]);
      case Op::multiply:
        return "rounded_product" + list(node);
      case Op::absolute:
        return "magnitude" + list(node);
      case Op::exp:
        return "exponential" + list(node);
      case Op::exp2:
        return "power_of_two" + list(node);
      case Op::log:
        return "logarithm" + list(node);
      case Op::tanh:
        return "tanh_of<Machine>" + list(node);
      case Op::floor_divide:
        return "floor_divided_float" + list(node);
      case Op::remainder:
        return "remainder_of_float" + list(node);
      case Op::minimum:
        return "minimum_of<float>" + list(node);
      default:
        return "maximum_of<float>" + list(node);
    }
  }

  const Expression& expression_;
  const std::vector<Node>& nodes_;
  std::span<const DeviceTable> tables_;
  std::vector<Interval> bounds_;
  std::vector<std::string> names_;
  std::string text_;
};

}  // namespace

std::string_view table_element_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "kTableBf16";
    case DType::f16:
      return "kTableF16";
    case DType::f64:
      return "kTableF64";
    case DType::fp8_e4m3:
      return "kTableE4m3";
    case DType::fp8_e5m2:
      return "kTableE5m2";
    case DType::boolean:
      return "kTableBool";
    case DType::u8:
      return "kTableU8";
    case DType::i32:
      return "kTableI32";
    case DType::i64:
      return "kTableI64";
    default:
      return "kTableF32";
  }
}

std::string device_source(const Expression& expression, std::span<const Interval> inputs,
                          std::span<const DeviceTable> tables) {
  return DeviceWriter(expression, inputs, tables).text();
}

}  // namespace tilewise::expression
