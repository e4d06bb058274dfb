// Distances between words.
#include "core/spelling.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "core/message.hpp"

namespace tilewise::core {
namespace {

/// Nothing that is known is longer; a longer word only costs time.
constexpr std::size_t kLongest = 40;

/// Letters to insert, drop, replace or swap with their neighbour until `a` is `b`.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

/// "_avx512_bf16_" of "avx512.bf16": words with marks around each of their parts.
std::string marked_parts(std::string_view word) {
  std::string parts = concat('_', word, '_');
  std::ranges::replace(parts, '-', '_');
  std::ranges::replace(parts, '.', '_');
  return parts;
}

/// How many parts `known` has besides `word`, which must be one or more of those between its underscores, hyphens or
/// dots; none where it is not.
std::optional<std::ptrdiff_t> other_parts(std::string_view known, std::string_view word) {
  const std::string whole = marked_parts(known), parts = marked_parts(word);
  if (whole.find(parts) == std::string::npos) return std::nullopt;
  return std::ranges::count(whole, '_') - std::ranges::count(parts, '_');
}

}  // namespace

std::string plain_letters(std::string_view word) {
  std::string letters;
  for (const char c : word) {
    if (c != '_' && c != '-') letters += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return letters;
}

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known) {
  const std::string letters = plain_letters(word.substr(0, kLongest));
  std::string_view best;
  std::size_t least = kLongest;
  for (const std::string_view candidate : known) {
    const std::string other = plain_letters(candidate);
    const std::size_t apart = distance(letters, other);
    if (apart <= std::max(letters.size(), other.size()) / 3 && apart < least) {
      least = apart;
      best = candidate;
    }
  }
  if (!best.empty() || letters.empty() || word.size() > kLongest) return best;
  std::optional<std::ptrdiff_t> fewest;
  for (const std::string_view candidate : known) {
    const std::optional<std::ptrdiff_t> others = other_parts(candidate, word);
    if (!others || (fewest && *fewest <= *others)) continue;
    fewest = others;
    best = candidate;
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> known) {
  const std::string_view meant = nearest_word(word, known);
  return meant.empty() ? std::string() : concat("; did you mean ", meant, "?");
}

std::string listed(std::span<const std::string_view> words) {
  std::string list;
  for (const std::string_view word : words) list += concat(list.empty() ? "" : ", ", word);
  return list;
}

void refuse_word(std::string_view argument, std::string_view word, std::span<const std::string_view> known) {
  invalid_argument(argument, ": must be one of ", listed(known), did_you_mean(word, known), " (got ", quoted(word),
                   ")");
}

}  // namespace tilewise::core
