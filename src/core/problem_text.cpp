// Cutting a problem's text into words.
#include "core/problem_text.hpp"

#include <algorithm>

namespace tilewise::core {
namespace {

std::string_view next_word(std::string_view& text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  std::size_t size = 0;
  bool within_quotes = false;
  while (size < text.size() && (within_quotes || kBlanks.find(text[size]) == std::string_view::npos)) {
    within_quotes ^= text[size] == '"';
    ++size;
  }
  const std::string_view word = text.substr(0, size);
  if (within_quotes) invalid_argument("problem: must close every quote (got ", quoted(word), ")");
  text.remove_prefix(size);
  return word;
}

std::string_view without_quotes(std::string_view value) {
  const bool within = value.size() >= 2 && value.starts_with('"') && value.ends_with('"');
  return within ? value.substr(1, value.size() - 2) : value;
}

}  // namespace

Words::Words(std::string_view text) {
  for (std::string_view word = next_word(text); !word.empty(); word = next_word(text)) {
    const std::size_t equals = word.find('=');
    if (operation_.empty()) {
      operation_ = word;
    } else if (equals == std::string_view::npos || equals == 0) {
      invalid_argument("problem: must consist of key=value words after the operation (got ", quoted(word), ")");
    } else {
      add(word.substr(0, equals), without_quotes(word.substr(equals + 1)));
    }
  }
}

std::string_view* Words::find(std::string_view key) {
  const auto word = std::ranges::find(words_, key, &Word::key);
  return word == words_.end() ? nullptr : &word->value;
}

std::optional<std::string_view> Words::take(std::string_view key) {
  const auto word = std::ranges::find(words_, key, &Word::key);
  if (word == words_.end()) return std::nullopt;
  const std::string_view value = word->value;
  words_.erase(word);
  return value;
}

void Words::add(std::string_view key, std::string_view value) {
  if (find(key) != nullptr) invalid_argument(quoted(key), ": must be given once (got it twice)");
  constexpr std::size_t kMostWords = 64;  // more than there are keys
  if (words_.size() == kMostWords) invalid_argument("problem: must have <= ", kMostWords, " words (got more)");
  words_.push_back({key, value});
}

}  // namespace tilewise::core
