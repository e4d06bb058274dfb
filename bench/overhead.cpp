// What one forward call costs beside the arithmetic, in C++: the tiniest problem (one query,
// one key, head_dim 8) by a ready plan and by the short way, and the parts of that way.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "ceilings/timing.hpp"
#include "overhead_report.hpp"
#include "tilewise/attention.hpp"

namespace {

using tilewise::bench::Measured;

constexpr int kCallsPerSample = 2000, kSamples = 31;
constexpr std::size_t kHeadDim = 8;

/// The median over samples of the mean time of one call, in nanoseconds.
template <typename Call>
double median_ns(Call&& call) {
  return tilewise::tools::median_ns(kSamples, kCallsPerSample, call, [] {});
}

Measured measure(tilewise::DType dtype) {
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

  return {tilewise::to_string(problem),
          std::string(plan.implementation()),
          {{"run(plan, arguments, workspace)", median_ns([&] { tilewise::run(plan, arguments, workspace); })},
           {"run(plan, arguments)", median_ns([&] { tilewise::run(plan, arguments); })},
           {"attention_forward(arguments)", median_ns([&] { tilewise::attention_forward(arguments); })},
           {"describe(arguments)", median_ns([&] { (void)tilewise::describe(arguments); })},
           {"plan(problem), known", median_ns([&] { (void)tilewise::plan(problem); })}}};
}

}  // namespace

int main(int argc, char** argv) {
  return tilewise::bench::run_program("tilewise-overhead", argc, argv, [] {
    return std::vector{measure(tilewise::DType::f32), measure(tilewise::DType::bf16)};
  });
}
