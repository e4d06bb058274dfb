// Small merge calls that own their memory, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "../../support/expect_error.hpp"
#include "operations/merge/merge.hpp"
#include "tilewise/merge.hpp"

namespace tilewise::test {

/// Both passes on parts of batch_size 2, seqlen_q 3, num_heads_q 4, head_dim_v 6, valid as they stand: with a sink,
/// every gradient wanted, all elements 0.
class SmallMerge {
 public:
  explicit SmallMerge(std::size_t parts = 3, DType dtype = DType::f32, DType part_dtype = DType::none) {
    const DType part = part_dtype == DType::none ? dtype : part_dtype;
    const DType statistics = dtype == DType::f64 ? DType::f64 : DType::f32;
    for (std::size_t n = 0; n < parts; ++n) {
      forward.outs.push_back(tensor({2, 3, 4, 6}, part));
      forward.lses.push_back(tensor({2, 4, 3}, statistics));
      backward.douts.push_back(tensor({2, 3, 4, 6}, part));
      backward.dlses.push_back(tensor({2, 4, 3}, statistics));
    }
    forward.sink = tensor({4}, DType::f32);
    forward.out = tensor({2, 3, 4, 6}, dtype);
    forward.softmax_lse = tensor({2, 4, 3}, statistics);
    share_inputs();
    backward.dout = tensor({2, 3, 4, 6}, dtype);
    backward.dlse = tensor({2, 4, 3}, statistics);
    backward.dsink = tensor({4}, DType::f32);
  }

  /// The same parts in one tensor each.
  static SmallMerge stacked(std::int64_t parts, DType dtype = DType::f32) {
    SmallMerge call(1, dtype);
    const DType statistics = dtype == DType::f64 ? DType::f64 : DType::f32;
    call.forward.outs = {call.tensor({parts, 2, 3, 4, 6}, dtype)};
    call.forward.lses = {call.tensor({parts, 2, 4, 3}, statistics)};
    call.backward.douts = {call.tensor({parts, 2, 3, 4, 6}, dtype)};
    call.backward.dlses = {call.tensor({parts, 2, 4, 3}, statistics)};
    call.share_inputs();
    return call;
  }

  TensorView tensor(std::initializer_list<std::int64_t> shape, DType dtype) {
    TensorView view(nullptr, dtype, shape);
    memory_.emplace_back(static_cast<std::size_t>(view.numel()) + 2);  // doubles: aligned to 16 by the allocator
    view.data = memory_.back().data();
    return view;
  }

  MergeArguments forward;
  MergeBackwardArguments backward;

 private:
  void share_inputs() {
    backward.outs = forward.outs;
    backward.lses = forward.lses;
    backward.sink = forward.sink;
  }
  std::deque<std::vector<double>> memory_;
};

/// The implementations of merge that this machine's CPU runs.
inline std::vector<std::string> merge_rows() {
  std::vector<std::string> names;
  for (const core::Implementation* row : core::implementation_table()) {
    constexpr const MergeProblem* kTag = nullptr;
    if (&row->operation() == &operation_of(kTag) && row->device() == DeviceType::cpu) names.emplace_back(row->name());
  }
  return names;
}

}  // namespace tilewise::test
