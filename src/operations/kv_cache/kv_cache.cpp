// The public functions of the KV cache step.
#include "operations/kv_cache/kv_cache.hpp"

#include "tilewise/kv_cache.hpp"

namespace tilewise {

using operations::KvCache;

const core::OperationInterface& operation_of(const KvCacheProblem*) noexcept {
  static constexpr core::OperationOf<KvCache> kOperation;
  return kOperation;
}

std::size_t hash_value(const KvCacheProblem& problem) noexcept { return operation_of(&problem).hash(&problem); }
std::string to_string(const KvCacheProblem& problem) { return operation_of(&problem).text(&problem); }
void validate(const KvCacheProblem& problem) { operations::kv_cache::validate(problem); }

namespace {

/// Unlike KvCache::describe() this tells everything that is wrong with a call.
KvCacheProblem describe_whole(const KvCache::Call& call) {
  KvCacheProblem problem = KvCache::describe(call);
  core::check_call_apart<KvCache>(call, nullptr, 0);
  validate(problem);
  (void)KvCache::make_params(call, problem);
  return problem;
}

}  // namespace

KvCacheProblem describe(const KvCacheArguments& arguments) { return describe_whole(KvCache::Call(arguments)); }
KvCacheProblem describe(const AppendKvArguments& arguments) { return describe_whole(KvCache::Call(arguments)); }

void run(const Plan& plan, const KvCacheArguments& arguments, void* workspace, void* stream) {
  core::run_planned<KvCache>(plan, KvCache::Call(arguments), workspace, stream);
}

void run(const Plan& plan, const AppendKvArguments& arguments, void* workspace, void* stream) {
  core::run_planned<KvCache>(plan, KvCache::Call(arguments), workspace, stream);
}

void kv_cache_attention(const KvCacheArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call<KvCache>(KvCache::Call(arguments), select, stream, nullptr);
}

void append_kv(const AppendKvArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call<KvCache>(KvCache::Call(arguments), select, stream, nullptr);
}

template void core::run_call<operations::KvCache>(const operations::KvCache::Call&, const SelectOptions&, void*,
                                                  WorkspaceSource*);

}  // namespace tilewise
