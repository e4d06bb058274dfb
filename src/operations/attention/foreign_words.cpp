// The table of them.
#include "operations/attention/foreign_words.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "core/spelling.hpp"

namespace tilewise::operations::attention {
namespace {

struct Foreign {
  std::string_view word;
  Meaning meaning;
};
/// Spellings of other libraries that resemble nothing here, or the wrong thing.
constexpr std::array kForeign{Foreign{"causal", {"mask", "causal", ""}},
                              Foreign{"is_causal", {"mask", "causal", ""}},
                              Foreign{"scale", {"softmax_scale", "", ""}},
                              Foreign{"sm_scale", {"softmax_scale", "", ""}},
                              Foreign{"lse", {"softmax_lse", "", ""}},
                              Foreign{"return_lse", {"softmax_lse", "", ""}},
                              Foreign{"window", {"window_left", "", "window_right"}},
                              Foreign{"window_size", {"window_left", "", "window_right"}},
                              Foreign{"sliding_window", {"window_left", "", "window_right"}}};

/// `key` as `known` spells it, or "".
std::string_view same_word(std::string_view key, std::span<const std::string_view> known) {
  const auto same = [letters = core::plain_letters(key)](std::string_view other) {
    return core::plain_letters(other) == letters;
  };
  const auto found = std::ranges::find_if(known, same);
  return found == known.end() ? std::string_view() : *found;
}

}  // namespace

Meaning meaning_of(std::string_view word, std::span<const std::string_view> known) {
  const std::string letters = core::plain_letters(word);
  for (const auto& [foreign, meaning] : kForeign) {
    if (core::plain_letters(foreign) != letters) continue;
    const Meaning found{same_word(meaning.key, known), meaning.value, same_word(meaning.other, known)};
    if (!found.key.empty()) return found;
  }
  return {core::nearest_word(word, known), "", ""};
}

}  // namespace tilewise::operations::attention
