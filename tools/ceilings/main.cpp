// tilewise-ceilings [--cpu-time] [THREADS...]: measures this machine's ceilings for each number of threads
// and prints a JSON list. The benchmarks in Python read it, so that every table has its peaks.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "ceilings/ceilings.hpp"

namespace {

constexpr int kExitOk = 0, kExitFailure = 1, kExitUsage = 2;
constexpr int kMaxThreads = 1024;

/// A thread count in [1, kMaxThreads], or 0.
int parse_threads(const char* text) {
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  return error == std::errc() && stop == end && value >= 1 && value <= kMaxThreads ? value : 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> thread_counts;
  tilewise::tools::CeilingOptions options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--cpu-time") == 0) {
      options.cpu_time = true;
      continue;
    }
    const int threads = parse_threads(argv[i]);
    if (threads == 0) {
      std::fprintf(stderr,
                   "THREADS: must be an integer in [1, %d] (got '%s')\n"
                   "usage: tilewise-ceilings [--cpu-time] [THREADS...]\n",
                   kMaxThreads, argv[i]);
      return kExitUsage;
    }
    thread_counts.push_back(threads);
  }
  if (thread_counts.empty()) thread_counts.push_back(1);
  try {
    std::string list;
    for (const int threads : thread_counts)
      list +=
          (list.empty() ? "[" : ",\n ") + tilewise::tools::to_json(tilewise::tools::measure_ceilings(threads, options));
    std::printf("%s]\n", list.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tilewise-ceilings: %s\n", error.what());
    return kExitFailure;
  }
  return kExitOk;
}
