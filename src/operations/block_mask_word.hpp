// What a problem says of a block mask, as a word of its text: none, or e.g. 128x64[b,1] with +full behind it where full
// blocks are told apart.
#pragma once

#include <string>
#include <string_view>

#include "core/hasher.hpp"
#include "tilewise/problem.hpp"

namespace tilewise {

// Beside BlockMaskShape, where problem text looks for what a field's type brings.
void print_value(std::string& text, const BlockMaskShape& mask);
void read_word(std::string_view key, std::string_view word, BlockMaskShape& mask);
void add_to(core::Hasher& hasher, const BlockMaskShape& mask);

}  // namespace tilewise
