// Building error sentences: concat() prints its arguments one after another, and the fail
// functions throw. They stand on the cold side of a check, so the good path builds no string.
#pragma once

#include <array>
#include <charconv>
#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>

#include "tilewise/error.hpp"

namespace tilewise::core {

inline void append(std::string& text, std::string_view part) { text += part; }
inline void append(std::string& text, char part) { text += part; }

/// Integers, and doubles in the shortest form that reads back to the same value.
template <typename Number>
  requires(std::is_arithmetic_v<Number> && !std::same_as<Number, char> && !std::same_as<Number, bool>)
void append(std::string& text, Number number) {
  std::array<char, 32> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  text += std::string_view(buffer.data(), static_cast<std::size_t>(result.ptr - buffer.data()));
}

template <typename... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
  std::string text;
  (append(text, parts), ...);
  return text;
}

/// Foreign text for a message: cut, since whoever sends a megabyte need not get it back, and with
/// every byte outside printable ASCII as \xNN, since a message is C text and must be valid UTF-8.
[[nodiscard]] inline std::string quoted(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string result = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      result += c;
    } else {
      result += concat("\\x", kHex[byte / 16], kHex[byte % 16]);
    }
  }
  return result + (text.size() > kLongest ? "...'" : "'");
}

template <typename... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void invalid_argument(const Parts&... parts) {
  throw Error(ErrorCode::invalid_argument, concat(parts...));
}

template <typename... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void invalid_type(const Parts&... parts) {
  throw Error(ErrorCode::invalid_type, concat(parts...));
}

}  // namespace tilewise::core
