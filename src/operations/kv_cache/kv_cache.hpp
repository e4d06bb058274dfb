// The KV cache step as the framework sees it: see OperationOf<> in core/operation.hpp and the functions of
// core/run.hpp.
#pragma once

#include "core/implementation.hpp"
#include "core/run.hpp"
#include "operations/kv_cache/call.hpp"
#include "operations/kv_cache/features.hpp"
#include "operations/kv_cache/fields.hpp"
#include "operations/kv_cache/last_call.hpp"
#include "operations/kv_cache/lengths.hpp"
#include "operations/kv_cache/rules.hpp"
#include "operations/kv_cache/tensors.hpp"
#include "operations/kv_cache/validate.hpp"

namespace tilewise::operations {

struct KvCache {
  using Problem = KvCacheProblem;
  using Feature = kv_cache::Feature;
  using Call = kv_cache::Call;
  using LastCall = kv_cache::LastCall;
  using Params = kv_cache::KvCacheParams;

  static constexpr std::string_view kName = "kv_cache";
  static constexpr auto kProblemNames = core::kNamesOf<KvCacheCall>;
  static constexpr auto kFeatureNames = kv_cache::kFeatureNames;

  static std::size_t problem_name(const Problem& problem) { return static_cast<std::size_t>(problem.call); }
  static void select_name(Problem& problem, std::size_t index) { problem.call = static_cast<KvCacheCall>(index); }
  template <typename Visit>
  static void for_each_field(Problem& problem, Visit&& visit) {
    kv_cache::for_each_field(problem, visit);
  }
  static void expand(core::Words&) {}  // there are no short forms
  static void validate(const Problem& problem) { kv_cache::validate(problem); }
  static Problem canonical(const Problem& problem) { return kv_cache::canonical(problem); }
  static kv_cache::FeatureSet required_features(const Problem& problem) { return kv_cache::required_features(problem); }
  [[noreturn]] static void refuse_key(std::string_view key, const Problem& problem) {
    kv_cache::refuse_key(key, problem);
  }

  static std::size_t kind(const Call& call) { return static_cast<std::size_t>(call.which); }
  static Device device(const Call& call) { return (call.appends_alone() ? call.k : call.q).device; }
  static Problem describe(const Call& call) { return kv_cache::describe(call); }
  static Params make_params(const Call& call, const Problem& problem) { return kv_cache::make_params(call, problem); }
  template <typename Visit>
  static void for_each_tensor(const Call& call, Visit&& visit) {
    kv_cache::for_each_tensor(call, visit);
  }
  static void check_device_values(const Call& call, const Problem& problem, void* stream) {
    kv_cache::check_device_values(call, problem, stream);
  }
};

namespace kv_cache {

using Kernel = core::KernelOf<KvCacheParams>;
using Implementation = core::ImplementationOf<KvCache>;

}  // namespace kv_cache
}  // namespace tilewise::operations
