// What the subcommands share on the terminal: aligned tables, a progress bar, numbers, a word about the cache, and
// problems in words.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace tilewise::tools {

/// Exit statuses of the command.
inline constexpr int kExitOk = 0, kExitFailure = 1, kExitUsage = 2;

/// Rows of text in aligned columns, two spaces apart.
class Table {
 public:
  /// A title beginning with '>' makes its column right-aligned.
  Table(std::initializer_list<std::string_view> titles);
  void add_row(std::vector<std::string> cells);
  /// `indent` spaces stand before each line.
  void print(std::ostream& stream, int indent = 0) const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<bool> right_aligned_;
};

/// A bar on standard error, drawn only where that is a terminal, at most ten times a second.
class Progress {
 public:
  explicit Progress(std::int64_t total);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::int64_t done, std::string_view note = {});
  /// Wipes the bar, so that other output starts on a clean line.
  void clear();

 private:
  std::int64_t total_;
  bool terminal_, drawn_ = false;
  std::chrono::steady_clock::time_point next_draw_{};
};

/// "12.3", with as many decimals as make three digits.
[[nodiscard]] std::string format_number(double value);
/// "850 ns", "12.3 us", "4.56 ms", "7.89 s".
[[nodiscard]] std::string format_seconds(double seconds);

/// Says on standard error why compiled kernels and tuned schedules are not kept, where they are not; returns whether
/// they are.
bool check_that_cache_keeps();

/// Splits words into problem texts: a word without '=' (an operation) begins a new one, so that
/// quoting a problem on the command line is optional.
[[nodiscard]] std::vector<std::string> join_problems(const std::vector<std::string>& words);

/// A problem as it was given, and where: "FILE:LINE: ", or nothing.
struct ProblemText {
  std::string text, place;
};
/// The problems of an option, and those of a file of one a line in which # begins a comment (none: ""). Throws Error
/// where the file can't be read.
[[nodiscard]] std::vector<ProblemText> given_problems(const std::vector<std::string>& words, const std::string& file);

/// As join_problems() where exactly one problem is meant. Throws Error otherwise.
[[nodiscard]] std::string single_problem(const std::vector<std::string>& words);

}  // namespace tilewise::tools
