// Division that rounds up: how many tiles, blocks or parts hold a number of things.
#pragma once

#include <cstdint>

namespace tilewise::core {

/// a >= 0 and b > 0.
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace tilewise::core
