// What is remembered of an attention call, to tell whether the next one describes to the same problem.
#pragma once

#include <array>

#include "operations/attention/call.hpp"

namespace tilewise::operations::attention {

/// A call that has no tensors but the usual ones; others are not worth comparing.
class LastCall {
 public:
  /// Whether `call` is such a call, of the same kind in everything that describe() looks at.
  [[nodiscard]] bool is_like(const Call& call) const;
  /// False, and nothing remembered, where `call` is no such call.
  bool remember(const Call& call);

 private:
  std::array<TensorView, 10> tensors_;
  AttentionOptions options_;
};

}  // namespace tilewise::operations::attention
