// Tables, the progress bar and problems in words.
#include "console.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <ostream>
#include <sstream>
#include <utility>

#include "core/message.hpp"
#include "jit/disk_cache.hpp"
#include "tilewise/error.hpp"

namespace tilewise::tools {
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

bool check_that_cache_keeps() {
  const std::string reason = jit::cache_folder_reason();
  if (!reason.empty()) std::cerr << "tilewise: kernel cache: " << reason << " (nothing is kept)\n";
  return reason.empty();
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

std::vector<ProblemText> given_problems(const std::vector<std::string>& words, const std::string& file_name) {
  std::vector<ProblemText> texts;
  for (std::string& text : join_problems(words)) texts.push_back({std::move(text), {}});
  if (file_name.empty()) return texts;
  std::ifstream file(file_name);
  if (!file) core::invalid_argument("--problems: ", file_name, " can't be read");
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line.erase(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    texts.push_back({line, core::concat(file_name, ":", number, ": ")});
  }
  return texts;
}

std::string single_problem(const std::vector<std::string>& words) {
  const std::vector<std::string> problems = join_problems(words);
  if (problems.size() == 1) return problems.front();
  const std::string actual =
      problems.empty() ? "none" : std::to_string(problems.size()) + ", the second '" + problems[1] + "'";
  throw Error(ErrorCode::invalid_argument, "PROBLEM: must be one problem (got " + actual + ")");
}

}  // namespace tilewise::tools
