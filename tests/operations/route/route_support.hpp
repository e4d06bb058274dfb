// Small route calls that own their memory, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "../../support/expect_error.hpp"
#include "operations/matrices.hpp"
#include "operations/route/route.hpp"
#include "tilewise/route.hpp"

namespace tilewise::test {

/// Both passes of 2 tokens, 6 experts and top_k 3, valid as they stand, with a bias and a scale for each expert.
class SmallRoute {
 public:
  explicit SmallRoute(DType dtype = DType::f32, DType ids = DType::i32, DType weights = DType::f32) {
    forward.logits = tensor({2, 6}, dtype);
    forward.bias = tensor({6}, DType::f32);
    forward.scale_of_expert = tensor({6}, DType::bf16);
    forward.topk_ids = tensor({2, 3}, ids);
    forward.topk_weights = tensor({2, 3}, weights);
    set(forward.logits, {0.5, -1.0, 2.0, 1.5, 0.25, -3.0, -0.75, 0.125, 1.0, -2.0, 3.0, 0.0});
    set(forward.bias, {0.0, 0.75, -0.5, 0.25, 0.0, 1.0});
    set(forward.scale_of_expert, {1.0, 2.0, 0.5, -1.0, 3.0, 1.5});
    backward.logits = forward.logits;
    backward.scale_of_expert = forward.scale_of_expert;
    backward.topk_ids = tensor({2, 3}, ids);
    backward.dtopk_weights = tensor({2, 3}, weights);
    backward.dlogits = tensor({2, 6}, dtype);
    set(backward.dtopk_weights, {1.0, -0.5, 0.25, 2.0, 1.0, -1.0});
    set_ids({0, 2, 3, 4, 1, 5});
  }

  TensorView tensor(std::initializer_list<std::int64_t> shape, DType dtype) {
    TensorView view(nullptr, dtype, shape);
    memory_.emplace_back(static_cast<std::size_t>(view.numel()) + 2);  // doubles: aligned to 16 by the allocator
    view.data = memory_.back().data();
    return view;
  }
  static void set(const TensorView& view, const std::vector<double>& values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      operations::store_element(view.dtype, view.data, static_cast<std::int64_t>(i), values[i]);
  }
  static std::vector<double> numbers(const TensorView& view) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < view.numel(); ++i)
      values.push_back(operations::load_element(view.dtype, view.data, i));
    return values;
  }
  static std::vector<std::int64_t> ids(const TensorView& view) {
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < view.numel(); ++i)
      values.push_back(operations::load_integer(view.dtype, view.data, i));
    return values;
  }
  void set_ids(const std::vector<std::int64_t>& values) const {
    for (std::size_t i = 0; i < values.size(); ++i)
      operations::store_integer(backward.topk_ids.dtype, backward.topk_ids.data, static_cast<std::int64_t>(i),
                                values[i]);
  }

  RouteArguments forward;
  RouteBackwardArguments backward;

 private:
  std::deque<std::vector<double>> memory_;
};

}  // namespace tilewise::test
