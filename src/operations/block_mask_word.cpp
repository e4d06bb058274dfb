// A block mask as a word; see block_mask_word.hpp.
#include "operations/block_mask_word.hpp"

#include <charconv>

#include "core/message.hpp"

namespace tilewise {
namespace {

/// Takes a number and what ends it from the front of `rest`; false where it does not begin so.
bool take_size(std::string_view& rest, char end, std::int64_t& size) {
  const char *const begin = rest.data(), *const last = begin + rest.size();
  const auto [stop, error] = std::from_chars(begin, last, size);
  if (error != std::errc{} || stop == last || *stop != end) return false;
  rest.remove_prefix(static_cast<std::size_t>(stop + 1 - begin));
  return true;
}

bool take_dimension(std::string_view& rest, char name, char end, bool& own) {
  if (rest.size() < 2 || (rest[0] != name && rest[0] != '1') || rest[1] != end) return false;
  own = rest[0] == name;
  rest.remove_prefix(2);
  return true;
}

}  // namespace

void print_value(std::string& text, const BlockMaskShape& mask) {
  if (mask.rows == 0) {
    core::append(text, "none");
    return;
  }
  core::append(text, core::concat(mask.rows, 'x', mask.keys, '[', mask.batch ? 'b' : '1', ',', mask.head ? 'h' : '1',
                                  ']', mask.full ? "+full" : ""));
}

void read_word(std::string_view key, std::string_view word, BlockMaskShape& mask) {
  mask = {};
  if (word == "none") return;
  std::string_view rest = word;
  const bool good = take_size(rest, 'x', mask.rows) && take_size(rest, '[', mask.keys) &&
                    take_dimension(rest, 'b', ',', mask.batch) && take_dimension(rest, 'h', ']', mask.head) &&
                    (rest.empty() || rest == "+full");
  if (!good || mask.rows == 0) {
    core::invalid_argument(key, ": must be none or ROWSxKEYS[b,h], with 1 for what all sequences or heads share, and",
                           " +full where full blocks are told apart, such as 128x128[b,1]+full (got ",
                           core::quoted(word), ")");
  }
  mask.full = !rest.empty();
}

void add_to(core::Hasher& hasher, const BlockMaskShape& mask) {
  for (const std::int64_t size : {mask.rows, mask.keys}) hasher.add(size);
  for (const bool own : {mask.batch, mask.head, mask.full}) hasher.add(own);
}

}  // namespace tilewise
