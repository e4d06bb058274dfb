// A format as a field of an operation's problem: its word in problem text, and its hash.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/hasher.hpp"
#include "core/message.hpp"
#include "core/problem_text.hpp"
#include "core/visibility.hpp"
#include "tilewise/block_format.hpp"

namespace tilewise {

/// All that have a name, that of numbers that are not quantised first.
[[nodiscard]] TILEWISE_INTERNAL std::span<const BlockFormat> block_formats();

inline void append(std::string& text, const BlockFormat& format) { text += to_string(format); }

inline void read_word(std::string_view key, std::string_view word, BlockFormat& format) {
  format = parse_block_format(word, key);
}

inline void add_to(core::Hasher& hasher, const BlockFormat& format) {
  hasher.add(format.element);
  hasher.add(format.scale);
  hasher.add(format.block_rows);
  hasher.add(format.block_columns);
  hasher.add(format.global);
}

}  // namespace tilewise
