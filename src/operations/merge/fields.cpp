// Advice about keys that a merge problem does not have.
#include "operations/merge/fields.hpp"

#include <algorithm>
#include <vector>

#include "core/spelling.hpp"

namespace tilewise::operations::merge {
namespace {

/// The keys of problems with p's layout.
std::vector<std::string_view> keys_of(MergeProblem p) {
  std::vector<std::string_view> keys;
  for_each_field(p, [&keys](std::string_view key, const auto&, const auto&) { keys.push_back(key); });
  return keys;
}

}  // namespace

void refuse_key(std::string_view key, const MergeProblem& problem) {
  MergeProblem other;
  other.layout = is_packed(problem) ? Layout::bshd : Layout::thd;
  const std::vector<std::string_view> keys = keys_of(problem), other_keys = keys_of(other);
  if (std::ranges::find(other_keys, key) != other_keys.end()) {  // and not among `keys`
    core::invalid_argument(key, is_packed(problem) ? ": excludes layout=thd" : ": requires layout=thd",
                           " (got layout=", core::name_of(problem.layout), ")");
  }
  core::invalid_argument("problem: unknown key", core::did_you_mean(key, keys), " (got ", core::quoted(key), ")");
}

}  // namespace tilewise::operations::merge
