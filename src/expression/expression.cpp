// Expressions as values: equality is that of their nodes, and so is the hash.
#include "expression/expression.hpp"

#include <algorithm>
#include <utility>

#include "core/hasher.hpp"
#include "core/message.hpp"
#include "core/names.hpp"

namespace tilewise::expression {
namespace {

void add_node(core::Hasher& hasher, const Node& node) {
  hasher.add(node.op);
  hasher.add(node.type);
  hasher.add(std::int64_t{node.index});
  for (const std::uint32_t operand : node.operands) hasher.add(std::int64_t{operand});
  hasher.add(node.integer());
}

}  // namespace

std::string_view to_string(Type type) {
  constexpr std::array<std::string_view, 3> kNames{"bool", "int", "float"};
  return kNames[static_cast<std::size_t>(type)];
}

Type table_type(DType dtype, std::string_view name) {
  switch (dtype) {
    case DType::boolean:
      return Type::boolean;
    case DType::u8:
    case DType::i32:
    case DType::i64:
      return Type::integer;
    case DType::f32:
    case DType::bf16:
    case DType::f16:
    case DType::f64:
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
      return Type::real;
    default:
      core::invalid_type(name, ": must be f32, bf16, f16, f64, fp8_e4m3, fp8_e5m2, bool, u8, i32 or i64 (got ",
                         core::name_of(dtype), ")");
  }
}

Expression::Expression(Signature signature, std::vector<Node> nodes)
    : signature_(std::move(signature)), nodes_(std::move(nodes)) {}

bool Expression::speaks_of(std::string_view variable) const {
  return std::ranges::any_of(nodes_, [&](const Node& node) {
    return node.op == Op::variable && signature_.variables[node.index].name == variable;
  });
}

std::size_t hash_value(const Node& node) noexcept {
  core::Hasher hasher;
  add_node(hasher, node);
  return hasher.value();
}

std::size_t hash_value(const Expression& expression) noexcept {
  core::Hasher hasher;
  for (const Node& node : expression.nodes()) add_node(hasher, node);
  return hasher.value();
}

}  // namespace tilewise::expression
