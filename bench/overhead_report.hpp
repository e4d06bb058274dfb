// What the programs that measure a call's cost share: the median over samples, and how results are printed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tilewise::bench {

struct Line {
  std::string_view what;
  double ns;
};

struct Measured {
  std::string problem, implementation;
  std::vector<Line> lines;
};

inline double median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

/// The median over `samples` of the mean time of one of `calls` calls, in nanoseconds. `settle` runs before each
/// sample, untimed; the first sample is a warm-up.
template <typename Call, typename Settle>
double median_ns(int samples, int calls, Call&& call, Settle&& settle) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> taken;
  for (int sample = -1; sample < samples; ++sample) {
    settle();
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    const double ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count() / calls;
    if (sample >= 0) taken.push_back(ns);
  }
  return median(std::move(taken));
}

inline void print_text(const Measured& measured) {
  std::printf("%s\n  by %s\n", measured.problem.c_str(), measured.implementation.c_str());
  for (const Line& line : measured.lines)
    std::printf("  %-34.*s %8.0f ns\n", static_cast<int>(line.what.size()), line.what.data(), line.ns);
}

/// None of the strings holds a character that JSON would escape.
inline void print_json(const std::vector<Measured>& all) {
  const char* separator = "[";
  for (const Measured& measured : all) {
    std::printf("%s{\"problem\": \"%s\", \"implementation\": \"%s\", \"ns\": {", separator, measured.problem.c_str(),
                measured.implementation.c_str());
    const char* comma = "";
    for (const Line& line : measured.lines) {
      std::printf("%s\"%.*s\": %.1f", comma, static_cast<int>(line.what.size()), line.what.data(), line.ns);
      comma = ", ";
    }
    std::printf("}}");
    separator = ",\n ";
  }
  std::printf("]\n");
}

/// The program's main(): prints what `measure` returns, as JSON where --json is its argument.
template <typename Measure>
int run_program(const char* name, int argc, char** argv, Measure&& measure) {
  constexpr int kExitOk = 0, kExitFailure = 1, kExitUsage = 2;
  const bool json = argc == 2 && std::strcmp(argv[1], "--json") == 0;
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: %s [--json] (got '%s')\n", name, argv[1]);
    return kExitUsage;
  }
  try {
    const std::vector<Measured> all = measure();
    if (json) {
      print_json(all);
    } else {
      for (const Measured& measured : all) print_text(measured);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return kExitFailure;
  }
  return kExitOk;
}

}  // namespace tilewise::bench
