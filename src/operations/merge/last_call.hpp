// What is remembered of a merge call, to tell whether the next one describes to the same problem.
#pragma once

#include <vector>

#include "operations/merge/call.hpp"

namespace tilewise::operations::merge {

/// Every tensor in the order of for_each_tensor(), given or not, and how long the lists of them are.
class LastCall {
 public:
  /// Whether `call` is of the same kind in everything that describe() looks at.
  [[nodiscard]] bool is_like(const Call& call) const;
  bool remember(const Call& call);

 private:
  std::vector<TensorView> tensors_;
  std::size_t outs_ = 0, lses_ = 0, douts_ = 0, dlses_ = 0;
  Layout layout_ = Layout::bshd;
};

}  // namespace tilewise::operations::merge
