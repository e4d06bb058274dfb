// How the programs that measure in C++ take times: one clock, and medians.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace tilewise::tools {

using Clock = std::chrono::steady_clock;

[[nodiscard]] inline double seconds_between(Clock::time_point start, Clock::time_point stop) {
  return std::chrono::duration<double>(stop - start).count();
}
[[nodiscard]] inline double seconds_since(Clock::time_point start) { return seconds_between(start, Clock::now()); }

/// Of at least one sample; the upper one of two in the middle.
[[nodiscard]] inline double median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

/// The median over `samples` of the mean time of one of `calls` calls, in nanoseconds. `settle` runs before each
/// sample, untimed; the first sample is a warm-up.
template <typename Call, typename Settle>
[[nodiscard]] double median_ns(int samples, int calls, Call&& call, Settle&& settle) {
  std::vector<double> taken;
  for (int sample = -1; sample < samples; ++sample) {
    settle();
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    if (sample >= 0) taken.push_back(1e9 * seconds_since(start) / calls);
  }
  return median(std::move(taken));
}

}  // namespace tilewise::tools
