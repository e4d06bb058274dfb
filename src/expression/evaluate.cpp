// A block of lanes goes through all nodes, one loop for each. What no lane changes is computed once and spread.
#include "expression/evaluate.hpp"

#include <algorithm>

#include "core/message.hpp"
#include "expression/arithmetic.hpp"
#include "expression/operators.hpp"
#include "formats/element.hpp"

namespace tilewise::expression {
namespace {

/// Element `at` of a table as what a look-up gives.
template <typename Value>
Value element_of(const TensorView& table, std::int64_t at) {
  if (table.dtype == DType::i64) return static_cast<Value>(static_cast<const std::int64_t*>(table.data)[at]);
  return static_cast<Value>(formats::load_element(table.dtype, table.data, at));
}

/// What all but look-ups and leaves are: a loop over a block's lanes.
template <typename Result, typename F, typename... Operands>
void each_lane(Result* results, std::int64_t count, const F& f, const Operands*... operands) {
  for (std::int64_t lane = 0; lane < count; ++lane) results[lane] = static_cast<Result>(f(operands[lane]...));
}

}  // namespace

std::string to_string(const OutOfRange& index) {
  return core::concat("table", index.table, ": index ", index.dimension, " must be >= 0 and < ", index.size, " (got ",
                      index.index, ")");
}

template <typename Real>
Evaluator<Real>::Evaluator(const Expression& expression, std::span<const TensorView> tables)
    : expression_(expression),
      tables_(tables),
      memory_(expression.nodes().size() * kLanes * sizeof(std::int64_t)),
      uniform_(expression.nodes().size()) {}

template <typename Real>
void Evaluator<Real>::operator()(std::span<const Input<Real>> inputs, std::int64_t count, Real* results) {
  run(inputs, count, results);
}
template <typename Real>
void Evaluator<Real>::operator()(std::span<const Input<Real>> inputs, std::int64_t count, std::int64_t* results) {
  run(inputs, count, results);
}
template <typename Real>
void Evaluator<Real>::operator()(std::span<const Input<Real>> inputs, std::int64_t count, std::uint8_t* results) {
  run(inputs, count, results);
}

template <typename Real>
template <typename Result>
void Evaluator<Real>::run(std::span<const Input<Real>> inputs, std::int64_t count, Result* results) {
  const std::vector<Node>& nodes = expression_.nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    bool uniform = node.op != Op::variable || inputs[node.index].uniform;
    for (std::size_t k = 0; k < node.operand_count; ++k) uniform = uniform && uniform_[node.operands[k]] != 0;
    uniform_[i] = uniform ? 1 : 0;
  }
  for (std::int64_t first = 0; first < count; first += kLanes) {
    const std::int64_t lanes = std::min(kLanes, count - first);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto at = static_cast<std::uint32_t>(i);
      if (uniform_[i] == 0) {
        evaluate(at, inputs, first, lanes);
      } else if (first == 0) {
        evaluate(at, inputs, 0, 1);
        spread(at, std::min(kLanes, count));
      }
    }
    std::copy_n(values<const Result>(static_cast<std::uint32_t>(nodes.size() - 1)), lanes, results + first);
  }
}

template <typename Real>
void Evaluator<Real>::evaluate(std::uint32_t at, std::span<const Input<Real>> inputs, std::int64_t first,
                               std::int64_t count) {
  const Node& node = expression_.nodes()[at];
  if (node.op == Op::constant) return read_constant(node, at, count);
  if (node.op == Op::variable) return read_variable(node, at, inputs[node.index], first, count);
  if (node.op == Op::lookup) return look_up(node, at, count);
  switch (operator_of(node.op).typing) {
    case Typing::ordering:
    case Typing::equality:
      return compare(node, at, count);
    case Typing::choice:
      return select(node, at, count);
    case Typing::logic:
      return combine(node, at, count);
    default:
      return compute(node, at, count);
  }
}

template <typename Real>
void Evaluator<Real>::spread(std::uint32_t at, std::int64_t count) {
  const auto fill = [count](auto* lanes) { std::fill_n(lanes + 1, count - 1, lanes[0]); };
  switch (expression_.nodes()[at].type) {
    case Type::boolean:
      return fill(values<std::uint8_t>(at));
    case Type::integer:
      return fill(values<std::int64_t>(at));
    case Type::real:
      return fill(values<Real>(at));
  }
}

template <typename Real>
void Evaluator<Real>::read_constant(const Node& node, std::uint32_t at, std::int64_t count) {
  switch (node.type) {
    case Type::boolean:
      std::fill_n(values<std::uint8_t>(at), count, static_cast<std::uint8_t>(node.bits));
      return;
    case Type::integer:
      std::fill_n(values<std::int64_t>(at), count, node.integer());
      return;
    case Type::real:
      std::fill_n(values<Real>(at), count, static_cast<Real>(node.real()));
      return;
  }
}

template <typename Real>
void Evaluator<Real>::read_variable(const Node& node, std::uint32_t at, const Input<Real>& input, std::int64_t first,
                                    std::int64_t count) {
  const std::int64_t from = input.uniform ? 0 : first;
  if (node.type == Type::real) {
    std::copy_n(input.reals + from, count, values<Real>(at));
  } else {
    std::copy_n(input.integers + from, count, values<std::int64_t>(at));
  }
}

template <typename Real>
void Evaluator<Real>::look_up(const Node& node, std::uint32_t at, std::int64_t count) {
  const TensorView& table = tables_[node.index];
  const auto read = [&](auto* results) {
    using Value = std::remove_reference_t<decltype(results[0])>;
    for (std::int64_t lane = 0; lane < count; ++lane) {
      std::int64_t offset = 0;
      bool inside = true;
      for (std::size_t d = 0; d < node.operand_count; ++d) {
        const std::int64_t index = values<const std::int64_t>(node.operands[d])[lane];
        if (index < 0 || index >= table.shape[d]) {
          if (!out_of_range_) out_of_range_ = {node.index, static_cast<int>(d), index, table.shape[d]};
          inside = false;
          break;
        }
        offset += index * table.strides[d];
      }
      results[lane] = inside ? element_of<Value>(table, offset) : Value{0};
    }
  };
  if (node.type == Type::real) return read(values<Real>(at));
  if (node.type == Type::integer) return read(values<std::int64_t>(at));
  read(values<std::uint8_t>(at));
  // Whatever is not 0 is true.
  for (std::int64_t lane = 0; lane < count; ++lane)
    values<std::uint8_t>(at)[lane] = values<std::uint8_t>(at)[lane] != 0;
}

template <typename Real>
template <typename Value>
void Evaluator<Real>::compute_as(const Node& node, std::uint32_t at, std::int64_t count) {
  Value* results = values<Value>(at);
  const Value *a = values<Value>(node.operands[0]), *b = values<Value>(node.operands[1]);
  if (node.operand_count == 1) {
    with_unary<Value>(node.op, [=](const auto& f) { each_lane(results, count, f, a); });
  } else {
    with_arithmetic<Value>(node.op, [=](const auto& f) { each_lane(results, count, f, a, b); });
  }
}

template <typename Real>
void Evaluator<Real>::combine(const Node& node, std::uint32_t at, std::int64_t count) {
  auto* results = values<std::uint8_t>(at);
  const auto *a = values<std::uint8_t>(node.operands[0]), *b = values<std::uint8_t>(node.operands[1]);
  if (node.op == Op::logical_not) {
    each_lane(results, count, [](std::uint8_t x) { return x == 0; }, a);
  } else if (node.op == Op::logical_and) {
    each_lane(results, count, [](std::uint8_t x, std::uint8_t y) { return x & y; }, a, b);
  } else {
    each_lane(results, count, [](std::uint8_t x, std::uint8_t y) { return x | y; }, a, b);
  }
}

template <typename Real>
void Evaluator<Real>::compute(const Node& node, std::uint32_t at, std::int64_t count) {
  if (node.op == Op::to_real) {
    const auto* integers = values<std::int64_t>(node.operands[0]);
    each_lane(values<Real>(at), count, [](std::int64_t a) { return a; }, integers);
  } else if (node.type == Type::real) {
    compute_as<Real>(node, at, count);
  } else {
    compute_as<std::int64_t>(node, at, count);
  }
}

template <typename Real>
template <typename Value>
void Evaluator<Real>::compare_as(const Node& node, std::uint32_t at, std::int64_t count) {
  auto* results = values<std::uint8_t>(at);
  const Value *a = values<Value>(node.operands[0]), *b = values<Value>(node.operands[1]);
  with_comparison<Value>(node.op, [=](const auto& f) { each_lane(results, count, f, a, b); });
}

template <typename Real>
void Evaluator<Real>::compare(const Node& node, std::uint32_t at, std::int64_t count) {
  switch (expression_.nodes()[node.operands[0]].type) {
    case Type::boolean:
      return compare_as<std::uint8_t>(node, at, count);
    case Type::integer:
      return compare_as<std::int64_t>(node, at, count);
    case Type::real:
      return compare_as<Real>(node, at, count);
  }
}

template <typename Real>
template <typename Value>
void Evaluator<Real>::select_as(const Node& node, std::uint32_t at, std::int64_t count) {
  const auto* condition = values<std::uint8_t>(node.operands[0]);
  const Value *a = values<Value>(node.operands[1]), *b = values<Value>(node.operands[2]);
  each_lane(values<Value>(at), count, [](std::uint8_t c, Value x, Value y) { return c != 0 ? x : y; }, condition, a, b);
}

template <typename Real>
void Evaluator<Real>::select(const Node& node, std::uint32_t at, std::int64_t count) {
  switch (node.type) {
    case Type::boolean:
      return select_as<std::uint8_t>(node, at, count);
    case Type::integer:
      return select_as<std::int64_t>(node, at, count);
    case Type::real:
      return select_as<Real>(node, at, count);
  }
}

template class Evaluator<float>;
template class Evaluator<double>;

}  // namespace tilewise::expression
