// What the programs that measure a call's cost share: how results are printed. tools/ceilings/timing.hpp takes the
// times.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
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
