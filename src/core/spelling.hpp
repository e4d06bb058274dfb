// What a mistyped or foreign word was probably meant to be, for messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tilewise::core {

/// The one of `known` that `word` resembles most, or "" where none is near: a few letters apart, or with `word` as
/// some of its parts ("heads" in "num_heads_q"). Case, '_' and '-' count for nothing; of equals, the first wins.
[[nodiscard]] std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known);

/// What a word that is no key was meant as: a key, where it has one a value, and where it has one a second key.
struct Meaning {
  std::string_view key, value, other;
};

/// The meaning of a key that other libraries have, such as {"mask", "causal"} of "is_causal", else the nearest one;
/// keys are those of `known`, and "" where there is none.
[[nodiscard]] Meaning meaning_of(std::string_view word, std::span<const std::string_view> known);

}  // namespace tilewise::core
