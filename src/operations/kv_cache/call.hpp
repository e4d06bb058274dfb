// Call: the tensors of either call under one set of names, so that describing them and turning them into parameters
// is written once.
#pragma once

#include "operations/kv_cache/params.hpp"
#include "tilewise/kv_cache.hpp"

namespace tilewise::operations::kv_cache {

/// Borrows from the arguments it was made of. What append_kv does not have is undefined.
struct Call {
  KvCacheCall which;
  const TensorView &q, &k_cache, &v_cache, &k, &v, &out, &softmax_lse;
  const KvCacheOptions& options;

  [[nodiscard]] bool appends_alone() const { return which == KvCacheCall::append_kv; }
  [[nodiscard]] bool appends() const { return k.defined() || appends_alone(); }
  /// Whether q and the new keys are packed.
  [[nodiscard]] bool packed() const {
    return options.cu_seqlens_q.defined() || options.cu_seqlens_k_new.defined() || (appends_alone() && k.rank == 3);
  }
  /// Whether the append computes the scales too.
  [[nodiscard]] bool writes_scales() const { return appends() && options.k_scale.rank == 3; }
};

[[nodiscard]] Call call_of(const KvCacheArguments& arguments);
[[nodiscard]] Call call_of(const AppendKvArguments& arguments);

/// The canonical problem of a call. Checks every tensor (given, dtype, device, shape, strides, data), but no values in
/// memory, which every run checks again: see lengths.hpp. Whether tensors share memory is checked on every run too.
[[nodiscard]] KvCacheProblem describe(const Call& call);

/// The parameters of a call that describes to `problem`. On the CPU, throws for lengths, tables and slots that lead
/// outside the tensors.
[[nodiscard]] KvCacheParams make_params(const Call& call, const KvCacheProblem& problem);

}  // namespace tilewise::operations::kv_cache
