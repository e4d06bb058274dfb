// Tables, the progress bar and the option checks of the command line.
#include "console.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <ostream>
#include <sstream>

#include "tilewise/error.hpp"

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

Table::Table(std::initializer_list<std::string_view> titles) {
  std::vector<std::string> header;
  for (std::string_view title : titles) {
    right_aligned_.push_back(title.starts_with('>'));
    if (right_aligned_.back()) title.remove_prefix(1);
    header.emplace_back(title);
  }
  rows_.push_back(std::move(header));
}

void Table::add_row(std::vector<std::string> cells) {
  cells.resize(right_aligned_.size());
  rows_.push_back(std::move(cells));
}

void Table::print(std::ostream& stream, int indent) const {
  std::vector<std::size_t> widths(right_aligned_.size(), 0);
  for (const auto& row : rows_)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  for (const auto& row : rows_) {
    std::string line(static_cast<std::size_t>(indent), ' ');
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      line += right_aligned_[c] ? padding + row[c] : row[c] + padding;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    stream << line << '\n';
  }
}

Progress::Progress(std::int64_t total) : total_(total), terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::update(std::int64_t done, std::string_view note) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || now < next_draw_) return;
  next_draw_ = now + std::chrono::milliseconds(100);
  constexpr std::int64_t kWidth = 30;
  const auto filled = static_cast<std::size_t>(total_ > 0 ? kWidth * std::min(done, total_) / total_ : kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::fprintf(stderr, "\r\x1b[K[%s] %lld/%lld %.*s", bar.c_str(), static_cast<long long>(done),
               static_cast<long long>(total_), static_cast<int>(note.size()), note.data());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

std::string format_number(double value) {
  const double size = std::abs(value);
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", size >= 100 ? 0 : size >= 10 ? 1 : 2, value);
  return text;
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-6) return format_number(seconds * 1e9) + " ns";
  if (seconds < 1e-3) return format_number(seconds * 1e6) + " us";
  if (seconds < 1.0) return format_number(seconds * 1e3) + " ms";
  return format_number(seconds) + " s";
}

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
        return std::ranges::find(words, text) != words.end() ? std::string() : expected("one of " + list, text);
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

std::vector<std::string> join_problems(const std::vector<std::string>& words) {
  std::vector<std::string> problems;
  for (const std::string& argument : words) {
    std::istringstream stream(argument);
    for (std::string word; stream >> word;) {
      if (problems.empty() || word.find('=') == std::string::npos) {
        problems.push_back(word);
      } else {
        problems.back() += ' ' + word;
      }
    }
  }
  return problems;
}

std::string single_problem(const std::vector<std::string>& words) {
  const std::vector<std::string> problems = join_problems(words);
  if (problems.size() == 1) return problems.front();
  const std::string actual =
      problems.empty() ? "none" : std::to_string(problems.size()) + ", the second '" + problems[1] + "'";
  throw Error(ErrorCode::invalid_argument, "PROBLEM: must be one problem (got " + actual + ")");
}

}  // namespace tilewise::tools
