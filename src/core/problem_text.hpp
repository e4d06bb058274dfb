// A problem as one line of text and back, driven by its operation's one list of fields: for_each_field(problem, visit)
// calls visit(key, field, default) in the order of printing. A default that a field can't be assigned makes the key
// required; it may depend on the fields visited before. A field's own type may bring print_word(), read_word() and
// add_to() beside it.
#pragma once

#include <charconv>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/hasher.hpp"
#include "core/message.hpp"
#include "core/names.hpp"

namespace tilewise::core {

/// The default of a field that must be given: no value equals it, and none can be assigned it.
struct Required {
  template <typename Field>
  friend constexpr bool operator==(const Field&, const Required&) {
    return false;
  }
};
inline constexpr Required kRequired;

/// The key=value words of a text; each is taken once. A value between quotes may hold blanks: key="a + b".
class Words {
 public:
  /// Throws Error(invalid_argument) for what is no such word.
  explicit Words(std::string_view text);

  [[nodiscard]] std::string_view operation() const { return operation_; }
  [[nodiscard]] std::optional<std::string_view> take(std::string_view key);
  /// Null where not given.
  [[nodiscard]] std::string_view* find(std::string_view key);
  void add(std::string_view key, std::string_view value);
  /// The first key that nobody took, or "".
  [[nodiscard]] std::string_view left() const { return words_.empty() ? std::string_view() : words_.front().key; }

 private:
  struct Word {
    std::string_view key, value;
  };
  std::string_view operation_;
  std::vector<Word> words_;
};

template <typename Field>
void print_value(std::string& text, const Field& value) {
  if constexpr (std::is_enum_v<Field>) {
    append(text, name_of(value));
  } else if constexpr (std::is_same_v<Field, bool>) {
    append(text, value ? '1' : '0');
  } else {
    append(text, value);
  }
}

/// " key=value".
template <typename Field>
void print_word(std::string& text, std::string_view key, const Field& value) {
  append(text, ' ');
  append(text, key);
  append(text, '=');
  print_value(text, value);
}

template <typename Number>
  requires(std::is_arithmetic_v<Number>)
void read_word(std::string_view key, std::string_view word, Number& value) {
  constexpr std::string_view kExpected = std::is_floating_point_v<Number> ? "a number" : "an integer of 64 bits";
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size()) {
    invalid_argument(key, ": must be ", kExpected, " (got ", quoted(word), ")");
  }
}
inline void read_word(std::string_view key, std::string_view word, bool& value) {
  if (word != "0" && word != "1") invalid_argument(key, ": must be 0 or 1 (got ", quoted(word), ")");
  value = word == "1";
}
inline void read_word(std::string_view /*key*/, std::string_view word, std::string& value) { value = word; }
template <typename Enum>
  requires std::is_enum_v<Enum>
void read_word(std::string_view key, std::string_view word, Enum& value) {
  value = value_of<Enum>(key, word);
}

/// False where the field must be given and is not.
template <typename Field, typename Default>
[[nodiscard]] bool read_field(Words& words, std::string_view key, Field& field, const Default& by_default) {
  if (const auto word = words.take(key)) {
    read_word(key, *word, field);
    return true;
  }
  if constexpr (std::is_assignable_v<Field&, const Default&>) field = by_default;
  return std::is_assignable_v<Field&, const Default&>;
}

template <typename Field>
  requires(std::is_arithmetic_v<Field> || std::is_enum_v<Field>)
void add_to(Hasher& hasher, const Field& field) {
  hasher.add(field);
}
inline void add_to(Hasher& hasher, const std::string& field) {
  hasher.add(static_cast<std::int64_t>(std::hash<std::string>{}(field)));
}

}  // namespace tilewise::core
