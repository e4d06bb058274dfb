// From a call to its problem, and to what kernels are launched with.
#pragma once

#include "operations/kv_cache/params.hpp"
#include "operations/kv_cache/schema.hpp"

namespace tilewise::operations::kv_cache {

/// The canonical problem of a call. Checks every tensor (given, dtype, device, shape, strides, data), but no values in
/// memory, which every run checks again: see lengths.hpp. Whether tensors share memory is checked on every run too.
[[nodiscard]] KvCacheProblem describe(const Call& call);

/// The parameters of a call that describes to `problem`. On the CPU, throws for lengths, tables and slots that lead
/// outside the tensors.
[[nodiscard]] KvCacheParams make_params(const Call& call, const KvCacheProblem& problem);

}  // namespace tilewise::operations::kv_cache
