// Small calls of linear layers that own their memory, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "../../support/expect_error.hpp"
#include "formats/element.hpp"
#include "formats/quantize.hpp"
#include "operations/linear/linear.hpp"
#include "tilewise/linear.hpp"

namespace tilewise::test {

/// Memory for tensors, all elements 0.
class Memory {
 public:
  TensorView tensor(std::initializer_list<std::int64_t> shape, DType dtype) {
    TensorView view(nullptr, dtype, shape);
    blocks_.emplace_back(static_cast<std::size_t>(view.numel()) + 2);  // doubles: aligned to 16 by the allocator
    view.data = blocks_.back().data();
    return view;
  }
  TensorView integers(DType dtype, const std::vector<std::int64_t>& values) {
    const TensorView view = tensor({static_cast<std::int64_t>(values.size())}, dtype);
    for (std::size_t i = 0; i < values.size(); ++i)
      operations::store_integer(dtype, view.data, static_cast<std::int64_t>(i), values[i]);
    return view;
  }

 private:
  std::deque<std::vector<double>> blocks_;
};

inline double element(const TensorView& view, std::int64_t index) {
  return formats::load_element(view.dtype, view.data, index);
}

/// Small whole numbers of either sign, whose sums are exact in every dtype.
inline void fill(const TensorView& view, std::int64_t seed) {
  for (std::int64_t i = 0; i < view.numel(); ++i)
    formats::store_element(view.dtype, view.data, i, static_cast<double>((i * 7 + seed * 5) % 5 - 2));
}

/// Both passes on tokens 6, n 4, k 8 and `experts` (0: one layer), valid as they stand: with a bias, every gradient
/// wanted.
class SmallLinear {
 public:
  static constexpr std::int64_t kTokens = 6, kN = 4, kK = 8;

  explicit SmallLinear(std::int64_t experts = 0, DType dtype = DType::f32) {
    const auto of_experts = [&](std::initializer_list<std::int64_t> shape) {
      if (experts == 0) return memory.tensor(shape, dtype);
      if (shape.size() == 1) return memory.tensor({experts, shape.begin()[0]}, dtype);
      return memory.tensor({experts, shape.begin()[0], shape.begin()[1]}, dtype);
    };
    forward.x = memory.tensor({kTokens, kK}, dtype);
    forward.w = of_experts({kN, kK});
    forward.bias = of_experts({kN});
    forward.out = memory.tensor({kTokens, kN}, dtype);
    if (experts > 0) {
      std::vector<std::int64_t> offsets;
      for (std::int64_t e = 0; e <= experts; ++e) offsets.push_back(kTokens * e / experts);
      forward.offsets = memory.integers(DType::i32, offsets);
    }
    fill(forward.x, 1), fill(forward.w, 2), fill(forward.bias, 3);
    backward.dout = memory.tensor({kTokens, kN}, dtype);
    fill(backward.dout, 4);
    backward.x = forward.x, backward.w = forward.w, backward.bias = forward.bias, backward.offsets = forward.offsets;
    backward.dx = memory.tensor({kTokens, kK}, dtype);
    backward.dw = of_experts({kN, kK});
    backward.dbias = of_experts({kN});
  }

  Memory memory;
  LinearArguments forward;
  LinearBackwardArguments backward;
};

/// The implementations of linear layers that this machine's CPU runs for a problem.
inline std::vector<std::string> rows_for(const LinearProblem& problem) {
  std::vector<std::string> names;
  for (const ExplainRow& row : explain(problem).rows)
    if (row.accepted) names.push_back(row.implementation);
  return names;
}

}  // namespace tilewise::test
