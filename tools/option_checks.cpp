// What an option's text must spell.
#include "option_checks.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "core/spelling.hpp"

namespace tilewise::tools {
namespace {

/// The number a whole word spells, or nothing.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value);
  if (status != std::errc{} || stop != end) return std::nullopt;
  return value;
}

/// The message of a failed check; CLI11 puts "--option: " before it.
std::string expected(const std::string& expectation, const std::string& actual) {
  return "must be " + expectation + " (got '" + actual + "')";
}

}  // namespace

CLI::Validator integer_between(std::int64_t low, std::int64_t high) {
  const bool bounded = high != std::numeric_limits<std::int64_t>::max();
  const std::string expectation =
      "an integer " +
      (bounded ? "from " + std::to_string(low) + " to " + std::to_string(high) : ">= " + std::to_string(low));
  return CLI::Validator(
      [low, high, expectation](const std::string& text) {
        const auto value = parse_number<std::int64_t>(text);
        return value && *value >= low && *value <= high ? std::string() : expected(expectation, text);
      },
      "INTEGER", "integer_between");
}

CLI::Validator number_between(double low, double high) {
  std::ostringstream expectation;
  expectation << "a finite number";
  if (low > -std::numeric_limits<double>::max()) expectation << " >= " << low;
  if (high < std::numeric_limits<double>::max()) expectation << " and <= " << high;
  return CLI::Validator(
      [low, high, expectation = expectation.str()](const std::string& text) {
        const auto value = parse_number<double>(text);
        return value && *value >= low && *value <= high ? std::string() : expected(expectation, text);
      },
      "NUMBER", "number_between");
}

CLI::Validator any_number() {
  return CLI::Validator(
      [](const std::string& text) { return parse_number<double>(text) ? std::string() : expected("a number", text); },
      "NUMBER", "any_number");
}

CLI::Validator unsigned_integer() {
  return CLI::Validator(
      [](const std::string& text) {
        return parse_number<std::uint64_t>(text) ? std::string() : expected("an integer from 0 to 2^64 - 1", text);
      },
      "INTEGER", "unsigned_integer");
}

CLI::Validator one_of(std::vector<std::string> words) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : "|") + word;
  return CLI::Validator(
      [words = std::move(words), list](const std::string& text) {
        if (std::ranges::find(words, text) != words.end()) return std::string();
        const std::vector<std::string_view> known(words.begin(), words.end());
        return expected("one of " + list + core::did_you_mean(text, known), text);
      },
      list, "one_of");
}

CLI::Validator path_to_write(const std::string& type) {
  return CLI::Validator(
      [](const std::string& text) { return text == "-" ? expected("a name, and ./- is one", text) : std::string(); },
      type, "path_to_write");
}

CLI::Option* with_check(CLI::Option* option, CLI::Validator check) {
  option->type_name(check.get_description());
  check.description("");
  return option->check(check);
}

void add_threads_option(CLI::App& command, int& threads) {
  with_check(command.add_option("--threads", threads,
                                "CPU threads (default: the processors allowed); at most TILEWISE_NUM_THREADS"),
             integer_between(1, 1024));
}

void add_implementation_option(CLI::App& command, std::string& implementation) {
  command
      .add_option("--implementation", implementation,
                  "use this one, e.g. cpu.avx2 (default: the cheapest that accepts)")
      ->type_name("NAME");
}

}  // namespace tilewise::tools
