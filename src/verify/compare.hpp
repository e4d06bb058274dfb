// One output against the reference's by its model: failures first (stray or missing writes, NaN), then bounds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "verify/drawn_call.hpp"
#include "verify/verify.hpp"

namespace tilewise::verify {

/// The first failure found, else how close the errors come to their bounds.
[[nodiscard]] OutputReport compare(const Output& got, const Output& expected, const ErrorBounds& bounds);

/// "out[batch 0, row 3, head 1, dim 7]".
[[nodiscard]] std::string describe_position(const Output& output, std::span<const std::int64_t> position);

/// Empty where both hold the same bits in every row of the call's, else the first difference.
[[nodiscard]] std::string find_bit_difference(const Output& a, const Output& b);

}  // namespace tilewise::verify
