// Advice about keys that a KV cache problem does not have.
#include "operations/kv_cache/fields.hpp"

#include <algorithm>
#include <vector>

#include "core/spelling.hpp"

namespace tilewise::operations::kv_cache {
namespace {

std::vector<std::string_view> keys_of(KvCacheProblem p) {
  std::vector<std::string_view> keys;
  for_each_field(p, [&keys](std::string_view key, const auto&, const auto&) { keys.push_back(key); });
  return keys;
}

bool has(const KvCacheProblem& p, std::string_view key) { return std::ranges::count(keys_of(p), key) > 0; }

}  // namespace

void refuse_key(std::string_view key, const KvCacheProblem& problem) {
  KvCacheProblem packed = problem, paged = problem, contiguous = problem, appending = problem;
  packed.layout = Layout::thd;
  paged.page_size = 1;
  contiguous.page_size = 0;
  appending.append = true;
  const auto require = [&](const KvCacheProblem& other, std::string_view what) {
    if (has(other, key)) core::invalid_argument(key, ": requires ", what, " (got a problem without)");
  };
  require(packed, "layout=thd");
  require(paged, "page_size");
  require(contiguous, "contiguous caches, no page_size");
  require(appending, "append=1");
  if (appends_alone(problem)) {
    KvCacheProblem attention;
    if (has(attention, key)) core::invalid_argument(key, ": belongs to kv_cache_attention (got it in append_kv)");
  }
  const std::vector<std::string_view> keys = keys_of(problem);
  core::invalid_argument("problem: unknown key", core::did_you_mean(key, keys), " (got ", core::quoted(key), ")");
}

}  // namespace tilewise::operations::kv_cache
