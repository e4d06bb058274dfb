// What a mistyped or foreign word was probably meant to be, for messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tilewise::core {

/// Letters and digits alone, in lower case: what two spellings of a word have in common.
[[nodiscard]] std::string plain_letters(std::string_view word);

/// The one of `known` that `word` resembles most, or "" where none is near: a few letters apart, or with `word` as
/// some of its parts ("size" in "batch_size"). Case, '_' and '-' count for nothing; of equals, the first wins.
[[nodiscard]] std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known);

}  // namespace tilewise::core
