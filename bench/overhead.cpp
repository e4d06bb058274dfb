// What one forward call costs beside the arithmetic, in C++: the tiniest problem (one query,
// one key, head_dim 8) by a ready plan and by the short way, and the parts of that way.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tilewise/attention.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCallsPerSample = 2000, kSamples = 31;
constexpr std::size_t kHeadDim = 8;

/// The median over samples of the mean time of one call, in nanoseconds.
template <typename Call>
double median_ns(Call&& call) {
  for (int i = 0; i < kCallsPerSample; ++i) call();  // warm-up
  std::array<double, kSamples> samples;
  for (double& sample : samples) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kCallsPerSample; ++i) call();
    sample = std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kCallsPerSample;
  }
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

template <typename Call>
void report(const char* name, Call&& call) {
  std::printf("%-44s %8.0f ns\n", name, median_ns(std::forward<Call>(call)));
}

void measure(tilewise::DType dtype) {
  // Four tensors of eight elements; 4 bytes hold an element of any dtype here, and zeros are zeros in each.
  alignas(64) std::array<std::array<float, kHeadDim>, 4> storage{};
  const auto view = [&](std::size_t i) {
    return tilewise::TensorView(storage[i].data(), dtype, {1, 1, 1, static_cast<std::int64_t>(kHeadDim)});
  };
  tilewise::ForwardArguments arguments;
  arguments.q = view(0);
  arguments.k = view(1);
  arguments.v = view(2);
  arguments.out = view(3);
  const tilewise::Problem problem = tilewise::describe(arguments);
  const tilewise::Plan plan = tilewise::plan(problem);
  std::vector<std::byte> workspace_storage(plan.workspace_size() + 64);
  void* workspace = workspace_storage.data();
  std::size_t space = workspace_storage.size();
  std::align(64, plan.workspace_size(), workspace, space);

  std::printf("%s\n  implementation %.*s\n", tilewise::to_string(problem).c_str(),
              static_cast<int>(plan.implementation().size()), plan.implementation().data());
  report("  run(plan, arguments, workspace)", [&] { tilewise::run(plan, arguments, workspace); });
  report("  run(plan, arguments)", [&] { tilewise::run(plan, arguments); });
  report("  attention_forward(arguments), the short way", [&] { tilewise::attention_forward(arguments); });
  report("  describe(arguments)", [&] { (void)tilewise::describe(arguments); });
  report("  plan(problem), from the cache", [&] { (void)tilewise::plan(problem); });
}

}  // namespace

int main() {
  try {
    for (const tilewise::DType dtype : {tilewise::DType::f32, tilewise::DType::bf16}) measure(dtype);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "overhead: %s\n", error.what());
    return 1;
  }
  return 0;
}
