// The KV cache step as the framework sees it: see OperationOf<> in core/operation.hpp and the functions of
// core/run.hpp.
#pragma once

#include "core/implementation.hpp"
#include "core/run.hpp"
#include "operations/derived/operation.hpp"
#include "operations/kv_cache/call.hpp"
#include "operations/kv_cache/features.hpp"
#include "operations/kv_cache/lengths.hpp"
#include "operations/kv_cache/rules.hpp"
#include "operations/kv_cache/schema.hpp"
#include "operations/kv_cache/validate.hpp"

namespace tilewise::operations {

struct KvCache : schema::Derived<kv_cache::kSchema> {
  using Feature = kv_cache::Feature;
  using Call = kv_cache::Call;
  using LastCall = kv_cache::LastCall;
  using Params = kv_cache::KvCacheParams;
  static constexpr auto kFeatureNames = kv_cache::kFeatureNames;

  static void validate(const Problem& problem) { kv_cache::validate(problem); }
  static Problem canonical(const Problem& problem) { return kv_cache::canonical(problem); }
  static kv_cache::FeatureSet required_features(const Problem& problem) { return kv_cache::required_features(problem); }
  static Problem describe(const Call& call) { return kv_cache::describe(call); }
  static Params make_params(const Call& call, const Problem& problem) { return kv_cache::make_params(call, problem); }
  static void check_device_values(const Call& call, const Problem& problem, void* stream) {
    kv_cache::check_device_values(call, problem, stream);
  }
};

namespace kv_cache {

using Kernel = core::KernelOf<KvCacheParams>;
using Implementation = core::ImplementationOf<KvCache>;

}  // namespace kv_cache
}  // namespace tilewise::operations

namespace tilewise::core {

// Compiled in kv_cache.cpp alone: it has most of what follows from a schema within, two seconds of a compiler.
extern template void run_call<operations::KvCache>(const operations::KvCache::Call&, const SelectOptions&, void*,
                                                   WorkspaceSource*);

}  // namespace tilewise::core
