// What a schedule says of the path a problem takes, for tests that must see that path run. The words schedules use
// stand here alone.
#pragma once

#include <algorithm>
#include <cctype>
#include <charconv>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace tilewise::test {

namespace words {
inline constexpr std::string_view kHeadsPacked = "heads packed", kSplits = " splits", kStaggered = "staggered";
// Kernels of the backward pass: all gradients in one, or dk and dv in one and dq in another.
inline constexpr std::string_view kBwd = "bwd", kBwdDkdv = "bwd_dkdv", kBwdDq = "bwd_dq";
}  // namespace words

struct SchedulePath {
  std::vector<std::string> kernels;  ///< those that a backward pass names, in order; a forward pass names none
  int splits = 1;                    ///< parts of the streamed side
  bool heads_packed = false;         ///< rows of a tile are (query, head of the group) pairs
  bool staggered = false;            ///< halves of a block's waves take turns at multiplying

  friend bool operator==(const SchedulePath&, const SchedulePath&) = default;
  friend void PrintTo(const SchedulePath& path, std::ostream* out) {
    *out << path.splits << " splits, heads " << (path.heads_packed ? "packed" : "apart")
         << (path.staggered ? ", staggered" : "") << ", kernels:";
    for (const std::string& kernel : path.kernels) *out << ' ' << kernel;
  }
};

/// Reads "128x64 tiles, 4 waves, 2 stages, heads packed, 3 splits" and "KERNEL 64x64 tiles, 2 splits; KERNEL ...".
inline SchedulePath path_of(std::string_view schedule) {
  SchedulePath path;
  path.heads_packed = schedule.find(words::kHeadsPacked) != std::string_view::npos;
  path.staggered = schedule.find(words::kStaggered) != std::string_view::npos;
  if (const std::size_t end = schedule.find(words::kSplits); end != std::string_view::npos) {
    const std::size_t start = schedule.find_last_not_of("0123456789", end - 1) + 1;
    std::from_chars(schedule.data() + start, schedule.data() + end, path.splits);
  }
  while (!schedule.empty()) {
    const std::size_t end = std::min(schedule.find("; "), schedule.size());
    const std::string_view word = schedule.substr(0, schedule.find(' '));
    if (std::isalpha(static_cast<unsigned char>(word.front()))) path.kernels.emplace_back(word);
    schedule.remove_prefix(std::min(end + 2, schedule.size()));
  }
  return path;
}

}  // namespace tilewise::test
