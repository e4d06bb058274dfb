// What the fuzz targets demand. A broken demand aborts, which libFuzzer and the replay test
// both report with the input at hand.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tilewise/error.hpp"

inline void expect(bool holds, const char* demand) {
  if (holds) return;
  std::fprintf(stderr, "broken demand: %s\n", demand);
  std::abort();
}

/// An error names its argument before a colon, or stands for no implementation at all.
inline void expect_sentence(const tilewise::Error& error) {
  const std::string_view text = error.what();
  expect(text.find(": ") != std::string_view::npos, "a message names the argument");
  expect(text.find(": ") > 0, "a message begins with the argument's name");
}
