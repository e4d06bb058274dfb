// Terms become instructions in their order: those that no key changes are a row's, the others each run's. Registers of
// runs are used again once nobody reads what they hold, so that a run stays in the first cache.
#include "backends/cpu/compiled_program.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "core/ceil_div.hpp"
#include "expression/arithmetic.hpp"
#include "expression/operators.hpp"

namespace tilewise::backends::cpu {
namespace {

using expression::Interval;
using expression::Node;
using expression::Op;
using expression::Type;
using expression::Typing;

constexpr std::int64_t kRunBytes = 24 << 10;  // of a run's registers: half of a first cache
constexpr std::int64_t kLongestRun = 256, kShortestRun = 32, kCacheLine = 64;
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

/// Terms of one or two functions, each once.
struct Terms {
  std::vector<Node> nodes;
  std::vector<Interval> bounds;
  std::vector<bool> read;

  /// The place of the result.
  std::uint32_t add(const expression::Expression& function, const ProgramInputs& inputs) {
    const auto look_up = [&inputs](std::uint32_t table, std::span<const Interval>) {
      return expression::any_element_of(inputs.tables[table]);
    };
    const std::vector<Interval> of_nodes = expression::bounds_of_nodes(function, inputs.variables, look_up);
    std::vector<std::uint32_t> places;
    for (std::size_t i = 0; i < of_nodes.size(); ++i) {
      Node node = function.nodes()[i];
      for (std::size_t k = 0; k < node.operand_count; ++k) node.operands[k] = places[node.operands[k]];
      const auto [found, fresh] = known_.emplace(node, static_cast<std::uint32_t>(nodes.size()));
      if (fresh) {
        nodes.push_back(node);
        bounds.push_back(of_nodes[i]);
        read.push_back(false);
      }
      places.push_back(found->second);
    }
    read[places.back()] = true;
    return places.back();
  }

  /// Those that no result needs stay unread.
  void mark_read() {
    for (std::size_t i = nodes.size(); i-- > 0;)
      for (std::size_t k = 0; read[i] && k < nodes[i].operand_count; ++k) read[nodes[i].operands[k]] = true;
  }

 private:
  struct NodeHash {
    std::size_t operator()(const Node& node) const noexcept { return hash_value(node); }
  };
  std::unordered_map<Node, std::uint32_t, NodeHash> known_;
};

/// A register before it has a place. Instructions hold its number instead of a place until then.
struct Virtual {
  Lane lane;
  bool varies;
  std::size_t last_use = 0;  // of the runs' instructions
  std::uint32_t at = 0;
};

OneLane one_lane_of(Op op, Lane lane, std::int64_t real_bytes) {
  OneLane f{};
  if (lane != Lane::real) {
    expression::with_arithmetic<std::int64_t>(op, [&f](const auto& of_two) { f.integer = of_two; });
  } else if (real_bytes == sizeof(float)) {
    f.single = [](float a, float) { return std::log(a); };
    if (op != Op::log) expression::with_arithmetic<float>(op, [&f](const auto& of_two) { f.single = of_two; });
  } else {
    f.real = [](double a, double) { return std::log(a); };
    if (op != Op::log) expression::with_arithmetic<double>(op, [&f](const auto& of_two) { f.real = of_two; });
  }
  return f;
}

class Compiler {
 public:
  Compiler(const Terms& terms, const expression::Signature& signature, std::int64_t real_bytes)
      : terms_(terms), signature_(signature), real_bytes_(real_bytes) {
    places_.resize(terms.nodes.size());
    for (std::size_t i = 0; i < terms.nodes.size(); ++i)
      if (terms.read[i]) places_[i] = compile(i);
  }

  std::vector<Constant> constants;
  std::vector<Instruction> row, keys;
  std::int64_t run = 0, memory = 0;

  void keep(std::uint32_t term) { registers_[places_[term]].last_use = kNever; }

  /// Places of all registers, written into the instructions.
  void place() {
    note_uses();
    for (Virtual& r : registers_) {
      if (r.varies) continue;
      r.at = static_cast<std::uint32_t>(memory);
      memory += kUniformBytes;
    }
    const std::int64_t uniform = memory;
    share_out();
    const std::int64_t lane = small_count_ * real_bytes_ + wide_count_ * std::int64_t{sizeof(std::int64_t)};
    for (run = kLongestRun; run > kShortestRun && run * lane > kRunBytes;) run /= 2;
    const std::int64_t first_wide = uniform + small_count_ * run * real_bytes_;
    memory =
        core::ceil_div(first_wide + wide_count_ * run * std::int64_t{sizeof(std::int64_t)}, kCacheLine) * kCacheLine;
    for (Virtual& r : registers_) {
      if (!r.varies) continue;
      r.at =
          static_cast<std::uint32_t>(r.lane == Lane::wide ? first_wide + r.at * run * std::int64_t{sizeof(std::int64_t)}
                                                          : uniform + r.at * run * real_bytes_);
    }
    for (Constant& c : constants) c.to = placed(c.to);
    for (std::vector<Instruction>* list : {&row, &keys}) {
      for (Instruction& n : *list) {
        n.to = placed(n.to);
        for (std::size_t k = 0; k < n.operand_count; ++k) n.operands[k] = placed(n.operands[k]);
      }
    }
  }

  /// Of a term, once registers have places.
  [[nodiscard]] Register at(std::uint32_t term) const { return register_of(registers_[places_[term]]); }

 private:
  [[nodiscard]] static Register register_of(const Virtual& r) { return {r.at, r.lane, r.varies}; }
  [[nodiscard]] Register placed(const Register& r) const { return register_of(registers_[r.at]); }
  [[nodiscard]] Register unplaced(std::uint32_t number) const {
    return {number, registers_[number].lane, registers_[number].varies};
  }
  std::uint32_t add_register(Lane lane, bool varies) {
    registers_.push_back({lane, varies});
    return static_cast<std::uint32_t>(registers_.size() - 1);
  }

  [[nodiscard]] Lane integer_lane(const Interval& bounds) const {
    return real_bytes_ == sizeof(std::int64_t) || expression::fits_32_bits(bounds) ? Lane::word : Lane::wide;
  }
  [[nodiscard]] Lane lane_of(std::size_t term) const {
    const Type type = terms_.nodes[term].type;
    if (type == Type::integer) return integer_lane(terms_.bounds[term]);
    return type == Type::real ? Lane::real : Lane::truth;
  }

  std::uint32_t compile(std::size_t term) {
    const Node& node = terms_.nodes[term];
    if (node.op == Op::variable) return add_register(lane_of(term), varies(node));
    if (node.op == Op::constant) {
      const std::uint32_t to = add_register(lane_of(term), false);
      constants.push_back({unplaced(to), node.bits});
      return to;
    }
    Instruction n{};
    n.op = node.op;
    n.operand_count = node.operand_count;
    n.table = node.index;
    bool of_keys = false, wide = lane_of(term) == Lane::wide && node.op != Op::lookup;
    for (std::size_t k = 0; k < node.operand_count; ++k) {
      const Virtual& operand = registers_[places_[node.operands[k]]];
      of_keys = of_keys || operand.varies;
      wide = wide || operand.lane == Lane::wide;
    }
    for (std::size_t k = 0; k < node.operand_count; ++k)
      n.operands[k] = unplaced(as_wide_as(wide, places_[node.operands[k]]));
    const bool computes_wide = wide && node.type == Type::integer && node.op != Op::lookup;
    const Lane lane = computes_wide ? Lane::wide : lane_of(term);
    n.action = action_of(node, lane);
    if (n.action == Action::lane_by_lane) n.one_lane = one_lane_of(node.op, lane, real_bytes_);
    const std::uint32_t to = add_register(lane, of_keys);
    n.to = unplaced(to);
    (of_keys ? keys : row).push_back(n);
    return computes_wide && lane_of(term) == Lane::word ? converted(to, Lane::word) : to;
  }

  [[nodiscard]] bool varies(const Node& variable) const {
    const std::string_view name = signature_.variables[variable.index].name;
    return name == "score" || name == "kv_idx";
  }

  [[nodiscard]] Action action_of(const Node& node, Lane lane) const {
    if (node.op == Op::lookup) return Action::look_up;
    const bool divides = node.op == Op::floor_divide || node.op == Op::remainder;
    const bool has_vectors = lane == Lane::word && real_bytes_ == sizeof(std::int32_t);
    return node.op == Op::log || (divides && !has_vectors) ? Action::lane_by_lane : Action::operate;
  }

  [[nodiscard]] std::uint32_t as_wide_as(bool wide, std::uint32_t number) {
    return wide && registers_[number].lane == Lane::word ? converted(number, Lane::wide) : number;
  }

  std::uint32_t converted(std::uint32_t from, Lane lane) {
    Instruction n{};
    n.action = Action::convert;
    n.operand_count = 1;
    n.operands[0] = unplaced(from);
    const std::uint32_t to = add_register(lane, registers_[from].varies);
    n.to = unplaced(to);
    (registers_[from].varies ? keys : row).push_back(n);
    return to;
  }

  void note_uses() {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      for (std::size_t k = 0; k < keys[i].operand_count; ++k) {
        Virtual& operand = registers_[keys[i].operands[k].at];
        if (operand.last_use != kNever) operand.last_use = i;
      }
    }
  }

  /// Numbers of slots for registers of runs, counted from 0 for wide ones and for others.
  void share_out() {
    std::vector<std::uint32_t> free_small, free_wide;
    const auto take = [&](Virtual& r) {
      std::vector<std::uint32_t>& free = r.lane == Lane::wide ? free_wide : free_small;
      std::int64_t& count = r.lane == Lane::wide ? wide_count_ : small_count_;
      if (free.empty()) free.push_back(static_cast<std::uint32_t>(count++));
      r.at = free.back();
      free.pop_back();
    };
    std::vector<bool> written(registers_.size());
    for (const Instruction& n : keys) written[n.to.at] = true;
    for (std::size_t r = 0; r < registers_.size(); ++r)
      if (registers_[r].varies && !written[r]) take(registers_[r]);  // variables
    std::vector<bool> released(registers_.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      take(registers_[keys[i].to.at]);
      for (std::size_t k = 0; k < keys[i].operand_count; ++k) {
        const std::uint32_t number = keys[i].operands[k].at;
        const Virtual& operand = registers_[number];
        if (!operand.varies || operand.last_use != i || released[number]) continue;
        released[number] = true;
        (operand.lane == Lane::wide ? free_wide : free_small).push_back(operand.at);
      }
    }
  }

  const Terms& terms_;
  const expression::Signature& signature_;
  std::int64_t real_bytes_, small_count_ = 0, wide_count_ = 0;
  std::vector<Virtual> registers_;
  std::vector<std::uint32_t> places_;
};

}  // namespace

CompiledProgram::CompiledProgram(const expression::Expression& function, const expression::Expression* slope,
                                 const ProgramInputs& inputs) {
  Terms terms;
  const std::uint32_t result = terms.add(function, inputs);
  const std::uint32_t of_slope = slope == nullptr ? result : terms.add(*slope, inputs);
  terms.mark_read();
  Compiler compiler(terms, function.signature(), inputs.real_bytes);
  compiler.keep(result);
  compiler.keep(of_slope);
  compiler.place();
  for (std::size_t i = 0; i < terms.nodes.size(); ++i) {
    const Node& node = terms.nodes[i];
    if (node.op != Op::variable || !terms.read[i]) continue;
    const std::string_view name = function.signature().variables[node.index].name;
    const VariableRegister at{compiler.at(static_cast<std::uint32_t>(i)), true};
    (name == "score"   ? program_.score
     : name == "b"     ? program_.b
     : name == "h"     ? program_.h
     : name == "q_idx" ? program_.query
                       : program_.key) = at;
  }
  program_.result = compiler.at(result);
  program_.slope = compiler.at(of_slope);
  program_.run = compiler.run;
  program_.memory = compiler.memory;
  constants_ = std::move(compiler.constants);
  row_ = std::move(compiler.row);
  keys_ = std::move(compiler.keys);
  program_.constants = constants_.data();
  program_.row = row_.data();
  program_.keys = keys_.data();
  program_.constant_count = static_cast<std::int32_t>(constants_.size());
  program_.row_count = static_cast<std::int32_t>(row_.size());
  program_.key_count = static_cast<std::int32_t>(keys_.size());
}

}  // namespace tilewise::backends::cpu
