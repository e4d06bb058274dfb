// What tensors of a schema may be, in words that need no problem.
#include "operations/derived/description.hpp"

#include <algorithm>
#include <ranges>

#include "core/message.hpp"

namespace tilewise::operations::schema {

std::string dtype_words(std::span<const DType> values, std::span<const DType> anchors, std::string_view anchor) {
  if (std::ranges::count(values, values.front()) == std::ssize(values)) return std::string(to_string(values.front()));
  if (std::ranges::equal(values, anchors)) return core::concat("that of ", anchor);
  std::string words(to_string(values.front())), others;
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] == values.front()) continue;
    others += core::concat(others.empty() ? "" : ", ", to_string(values[i]), " where ", anchor, " is ",
                           to_string(anchors[i]));
  }
  return core::concat(words, " (", others, ")");
}

std::string alternatives(const std::vector<std::string>& words) {
  std::vector<std::string_view> once;
  for (const std::string& word : words)
    if (std::ranges::count(once, word) == 0) once.push_back(word);
  std::string text;
  for (std::size_t i = 0; i < once.size(); ++i)
    text += core::concat(i == 0 ? "" : i + 1 < once.size() ? ", " : " or ", once[i]);
  return text;
}

}  // namespace tilewise::operations::schema
