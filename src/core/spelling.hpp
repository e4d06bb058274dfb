// What a mistyped or foreign word was probably meant to be, for messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/visibility.hpp"

namespace tilewise::core {

/// Letters and digits alone, in lower case: what two spellings of a word have in common.
[[nodiscard]] std::string plain_letters(std::string_view word);

/// The one of `known` that `word` resembles most, or "" where none is near: a few letters apart, or with `word` as
/// some of its parts ("size" in "batch_size", "avx512" in "cpu.avx512"). Case, '_' and '-' count for nothing; of
/// equals, the one with the fewest other parts wins, or the first.
[[nodiscard]] TILEWISE_INTERNAL std::string_view nearest_word(std::string_view word,
                                                              std::span<const std::string_view> known);

/// "; did you mean causal?" of the nearest_word(), or "".
[[nodiscard]] TILEWISE_INTERNAL std::string did_you_mean(std::string_view word,
                                                         std::span<const std::string_view> known);

/// "a, b, c"
[[nodiscard]] TILEWISE_INTERNAL std::string listed(std::span<const std::string_view> words);

/// Throws because `word` is none of the `known`: "target: must be one of sm_80, sm_90; did you mean sm_90? (got
/// 'sm90')".
[[noreturn]] TILEWISE_INTERNAL void refuse_word(std::string_view argument, std::string_view word,
                                                std::span<const std::string_view> known);

}  // namespace tilewise::core
