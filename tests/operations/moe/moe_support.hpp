// Small calls of experts that own their memory, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "../../support/expect_error.hpp"
#include "formats/element.hpp"
#include "operations/moe/moe.hpp"
#include "tilewise/moe.hpp"
#include "verify/random.hpp"

namespace tilewise::test {

/// Both passes on 5 tokens of hidden 6, 4 experts of intermediate 3, top_k 2, valid as they stand: with biases, every
/// gradient wanted, numbers drawn, every id somebody's.
class SmallMoe {
 public:
  static constexpr std::int64_t kTokens = 5, kHidden = 6, kIntermediate = 3, kExperts = 4, kTopK = 2;

  explicit SmallMoe(DType dtype = DType::f32, MoeGate gate = MoeGate::concatenated) {
    const std::int64_t rows = gate == MoeGate::none ? kIntermediate : 2 * kIntermediate;
    const DType statistics = dtype == DType::f64 ? DType::f64 : DType::f32;
    forward.x = drawn({kTokens, kHidden}, dtype);
    forward.topk_ids = tensor({kTokens, kTopK}, DType::i32);
    for (std::int64_t i = 0; i < kTokens * kTopK; ++i) set_id(i, i * 3 % kExperts);
    forward.topk_weights = drawn({kTokens, kTopK}, statistics);
    forward.gate_up = drawn({kExperts, rows, kHidden}, dtype);
    forward.down = drawn({kExperts, kHidden, kIntermediate}, dtype);
    forward.gate_up_bias = drawn({kExperts, rows}, dtype);
    forward.down_bias = drawn({kExperts, kHidden}, dtype);
    forward.out = tensor({kTokens, kHidden}, dtype);
    forward.gate = gate;
    gate_up_out = tensor({kTokens * kTopK, rows}, dtype);
    backward.dout = drawn({kTokens, kHidden}, dtype);
    share_inputs();
    backward.dx = tensor({kTokens, kHidden}, dtype);
    backward.dtopk_weights = tensor({kTokens, kTopK}, statistics);
    backward.dgate_up = tensor({kExperts, rows, kHidden}, dtype);
    backward.ddown = tensor({kExperts, kHidden, kIntermediate}, dtype);
    backward.dgate_up_bias = tensor({kExperts, rows}, dtype);
    backward.ddown_bias = tensor({kExperts, kHidden}, dtype);
  }

  /// All elements 0.
  TensorView tensor(std::initializer_list<std::int64_t> shape, DType dtype) {
    TensorView view(nullptr, dtype, shape);
    memory_.emplace_back(static_cast<std::size_t>(view.numel()) + 2);  // doubles: aligned to 16 by the allocator
    view.data = memory_.back().data();
    return view;
  }
  TensorView drawn(std::initializer_list<std::int64_t> shape, DType dtype) {
    const TensorView view = tensor(shape, dtype);
    for (std::int64_t i = 0; i < view.numel(); ++i) formats::store_element(dtype, view.data, i, random_.normal());
    return view;
  }
  void set_id(std::int64_t index, std::int64_t id) {
    operations::store_integer(forward.topk_ids.dtype, forward.topk_ids.data, index, id);
  }
  /// What the backward pass takes is what the forward one does.
  void share_inputs() {
    backward.x = forward.x;
    backward.topk_ids = forward.topk_ids;
    backward.topk_weights = forward.topk_weights;
    backward.gate_up = forward.gate_up;
    backward.down = forward.down;
    backward.gate_up_bias = forward.gate_up_bias;
    backward.down_bias = forward.down_bias;
    backward.gate = forward.gate;
  }

  /// Has both passes share the first product's sums.
  void save_gate_up() {
    forward.save_gate_up = backward.save_gate_up = true;
    forward.gate_up_out = backward.gate_up_out = gate_up_out;
  }

  MoeArguments forward;
  MoeBackwardArguments backward;
  TensorView gate_up_out;

 private:
  std::deque<std::vector<double>> memory_;
  verify::Random random_{1};
};

inline double element(const TensorView& view, std::int64_t index) {
  return formats::load_element(view.dtype, view.data, index);
}
inline void set_element(const TensorView& view, std::int64_t index, double value) {
  formats::store_element(view.dtype, view.data, index, value);
}

/// The implementations that serve a problem on this machine.
inline std::vector<std::string> rows_for(const MoeProblem& problem) {
  std::vector<std::string> names;
  for (const ExplainRow& row : explain(problem).rows)
    if (row.accepted) names.push_back(row.implementation);
  return names;
}

}  // namespace tilewise::test
