// From a call to its problem, and to what kernels are launched with.
#pragma once

#include "core/visibility.hpp"
#include "operations/kv_cache/params.hpp"
#include "operations/kv_cache/schema.hpp"

namespace tilewise::operations::kv_cache {

/// The canonical problem of a call. Checks every tensor (given, dtype, device, shape, strides, data), but no values in
/// memory, which every run checks again: see lengths.hpp. Whether tensors share memory is checked on every run too.
[[nodiscard]] TILEWISE_INTERNAL KvCacheProblem describe(const Call& call);

/// What calls like the problem's state that is no tensor, nor a number in the place of one.
[[nodiscard]] TILEWISE_INTERNAL KvCacheOptions stated_options(const KvCacheProblem& problem);

/// The parameters of a call that describes to `problem`. On the CPU, throws for lengths, tables and slots that lead
/// outside the tensors.
[[nodiscard]] TILEWISE_INTERNAL KvCacheParams make_params(const Call& call, const KvCacheProblem& problem);

/// What is remembered of a call, to tell whether the next one describes to the same problem. Of one without a block
/// mask: the size of its blocks is no field that calls state.
class LastCall {
 public:
  [[nodiscard]] bool is_like(const Call& call) const { return call.options.block_mask.empty() && last_.is_like(call); }
  bool remember(const Call& call) { return call.options.block_mask.empty() && last_.remember(call); }

 private:
  schema::LastCallOf<kSchema> last_;
};

}  // namespace tilewise::operations::kv_cache
