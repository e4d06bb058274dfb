// Advice about keys that an attention problem does not have.
#include "operations/attention/fields.hpp"

#include <algorithm>
#include <vector>

#include "operations/attention/foreign_words.hpp"

namespace tilewise::operations::attention {
namespace {

/// The keys of problems with p's layout.
std::vector<std::string_view> keys_of(AttentionProblem p) {
  std::vector<std::string_view> keys;
  for_each_field(p, [&keys](std::string_view key, const auto&, const auto&) { keys.push_back(key); });
  return keys;
}

}  // namespace

void refuse_key(std::string_view key, const AttentionProblem& problem) {
  AttentionProblem packed;
  packed.layout = Layout::thd;
  const std::vector<std::string_view> keys = keys_of(problem), packed_keys = keys_of(packed);
  if (std::ranges::find(packed_keys, key) != packed_keys.end()) {  // and not among `keys`
    core::invalid_argument(key, ": requires layout=thd (got layout=", core::name_of(problem.layout), ")");
  }
  const auto [meant, value, other] = meaning_of(key, keys);
  std::string advice = meant.empty() ? "" : core::concat("; did you mean ", meant);
  if (!value.empty()) advice += core::concat('=', value);
  if (!other.empty()) advice += core::concat(" and ", other);
  core::invalid_argument("problem: unknown key", advice, advice.empty() ? "" : "?", " (got ", core::quoted(key), ")");
}

}  // namespace tilewise::operations::attention
