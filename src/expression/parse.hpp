// Text as an expression.
#pragma once

#include <string>
#include <string_view>

#include "expression/expression.hpp"

namespace tilewise::expression {

/// Longest text, in bytes.
inline constexpr std::size_t kLongestText = 16384;

/// Reads "score + table0[h, clamp(q_idx - kv_idx, 0, 127)]": Python's operators with Python's precedence, `select` (or
/// `where`), `min`, `max`, `clamp`, `abs`, `exp`, `exp2`, `log`, `tanh` and `float`, the constants `True`, `False`,
/// `inf` and `nan`, and names for what is used more than once: "t0 = q_idx - kv_idx; t0 * t0". A float where `type`
/// asks for one may be an int. Throws Error (invalid_argument), beginning with `argument` and naming the place, for
/// what it can't read.
[[nodiscard]] Expression parse(std::string_view text, const Signature& signature, Type type, std::string argument);

}  // namespace tilewise::expression
