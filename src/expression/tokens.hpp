// The words of an expression's text.
#pragma once

#include <string_view>

#include "core/message.hpp"

namespace tilewise::expression {

/// A name, a number, an operator or a bracket; empty at the end.
class Tokens {
 public:
  Tokens(std::string_view text, std::string_view argument) : text_(text), argument_(argument) { advance(); }

  [[nodiscard]] std::string_view current() const { return current_; }
  /// The token after the current one.
  [[nodiscard]] std::string_view next() const { return token_at(end_); }
  void advance() {
    current_ = token_at(end_);
    end_ = current_.empty() ? text_.size() : static_cast<std::size_t>(current_.data() - text_.data()) + current_.size();
  }
  bool take(std::string_view token) {
    if (current_ != token) return false;
    advance();
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) refuse(core::concat("'", token, "'"));
  }
  /// Throws "score_mod: must have `expected` at byte 12 (got '+')".
  [[noreturn]] void refuse(std::string_view expected) const {
    core::invalid_argument(argument_, ": must have ", expected, " at byte ", end_ - current_.size(), " (got ",
                           current_.empty() ? "the end" : core::quoted(current_), ")");
  }

  [[nodiscard]] static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  [[nodiscard]] static bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

 private:
  [[nodiscard]] std::string_view token_at(std::size_t from) const {
    const std::size_t begin = text_.find_first_not_of(" \t\r\n", from);
    if (begin == std::string_view::npos) return {};
    const std::string_view rest = text_.substr(begin);
    std::size_t size = 1;
    if (begins_name(rest[0])) {
      while (size < rest.size() && (begins_name(rest[size]) || is_digit(rest[size]))) ++size;
    } else if (is_digit(rest[0]) || (rest[0] == '.' && rest.size() > 1 && is_digit(rest[1]))) {
      size = number_size(rest);
    } else {
      for (const std::string_view two : {"//", "**", "<<", ">>", "<=", ">=", "==", "!="}) {
        if (rest.starts_with(two)) size = 2;
      }
    }
    return rest.substr(0, size);
  }
  /// Letters too, so that "1x" is one token, which is no number.
  [[nodiscard]] static std::size_t number_size(std::string_view rest) {
    std::size_t size = 1;
    while (size < rest.size()) {
      const char c = rest[size], before = rest[size - 1];
      const bool sign = (c == '+' || c == '-') && (before == 'e' || before == 'E');
      if (!is_digit(c) && !begins_name(c) && c != '.' && !sign) break;
      ++size;
    }
    return size;
  }

  std::string_view text_, argument_, current_;
  std::size_t end_ = 0;
};

}  // namespace tilewise::expression
