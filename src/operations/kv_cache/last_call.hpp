// What is remembered of a KV cache call, to tell whether the next one describes to the same problem.
#pragma once

#include <array>

#include "operations/kv_cache/call.hpp"

namespace tilewise::operations::kv_cache {

/// Every tensor in the order of for_each_tensor(), given or not, and the scalar options. Values in memory and numbers
/// that are kernels' parameters alone do not matter.
class LastCall {
 public:
  /// Whether `call` is of the same kind in everything that describe() looks at.
  [[nodiscard]] bool is_like(const Call& call) const;
  bool remember(const Call& call);

 private:
  std::array<TensorView, 21> tensors_;
  KvCacheOptions options_;
};

}  // namespace tilewise::operations::kv_cache
