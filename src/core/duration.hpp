// A length of time as people read it.
#pragma once

#include <string>

namespace tilewise::core {

/// "12.3 us", "4.56 ms", "1.20 s", "34.0 min", "5.6 h", "78 days": three digits of the unit that keeps them short.
[[nodiscard]] std::string duration_text(double microseconds);

}  // namespace tilewise::core
