// Tables as a word, and advice about keys that an attention problem does not have.
#include "operations/attention/fields.hpp"

#include <algorithm>
#include <charconv>
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

/// Takes "f32[16,128]" from the front of `rest`; false where it does not begin so.
bool take_table(std::string_view key, std::string_view& rest, TableShape& table) {
  const std::size_t open = rest.find('['), close = rest.find(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return false;
  table.dtype = core::value_of<DType>(key, rest.substr(0, open));
  const char *at = rest.data() + open + 1, *end = rest.data() + close;
  while (at != end) {
    if (table.rank == static_cast<int>(table.shape.size())) return false;
    const auto [stop, error] = std::from_chars(at, end, table.shape[static_cast<std::size_t>(table.rank)]);
    if (error != std::errc{} || (stop != end && *stop != ',') || stop + 1 == end) return false;
    ++table.rank;
    at = stop == end ? end : stop + 1;
  }
  rest.remove_prefix(close + 1);
  return true;
}

}  // namespace

void print_value(std::string& text, const TablesWord& word) {
  if (word.tables.empty()) core::append(text, "none");
  for (std::size_t i = 0; i < word.tables.size(); ++i) {
    const TableShape& table = word.tables[i];
    core::append(text, core::concat(i == 0 ? "" : ",", core::name_of(table.dtype), '['));
    for (int d = 0; d < table.rank; ++d) {
      core::append(text, core::concat(d == 0 ? "" : ",", table.shape[static_cast<std::size_t>(d)]));
    }
    core::append(text, ']');
  }
}

void read_word(std::string_view key, std::string_view word, TablesWord& value) {
  value.tables.clear();
  if (word == "none") return;
  std::string_view rest = word;
  bool good = true;
  do {
    good = take_table(key, rest, value.tables.emplace_back());
    if (good && !rest.empty()) {
      good = rest.size() > 1 && rest.front() == ',';
      rest.remove_prefix(1);
    }
  } while (good && !rest.empty());
  if (!good) {
    core::invalid_argument(key, ": must be none or element types with 1 to 4 sizes, such as f32[16,128],i32[64] (got ",
                           core::quoted(word), ")");
  }
}

void add_to(core::Hasher& hasher, const TablesWord& word) {
  for (const TableShape& table : word.tables) {
    hasher.add(table.dtype);
    for (const std::int64_t size : table.shape) hasher.add(size);
  }
}

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
