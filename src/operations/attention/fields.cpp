// Advice about keys that an attention problem does not have.
#include "operations/attention/fields.hpp"

#include <algorithm>
#include <vector>

#include "operations/attention/foreign_words.hpp"
#include "operations/attention/schema.hpp"
#include "operations/derived/fields.hpp"

namespace tilewise::operations::attention {

void refuse_key(std::string_view key, const AttentionProblem& problem) {
  AttentionProblem packed;
  packed.layout = Layout::thd;
  const std::vector<std::string_view> keys = schema::keys_of<kSchema>(problem),
                                      packed_keys = schema::keys_of<kSchema>(packed);
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
