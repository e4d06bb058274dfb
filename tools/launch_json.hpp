// What `tilewise compile` writes beside the code objects: everything that a bare driver must be told to launch them.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "backends/portable/compile_ahead.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::tools {

/// A problem and the launches it takes.
struct LoweredProblem {
  Problem problem;
  backends::portable::Lowering lowering;
};

/// A compiled kernel under the name of its file, such as "forward.cubin".
struct NamedKernel {
  std::string file;
  const backends::portable::KernelBuild* build;
};

/// Names for kernels in the order of their first launch: forward, key_gradient, key_gradient_2, ...
[[nodiscard]] std::vector<NamedKernel> name_kernels(std::span<const backends::portable::KernelBuild> builds);

[[nodiscard]] nlohmann::ordered_json launch_json(std::string_view implementation,
                                                 const backends::portable::DeviceTraits& traits,
                                                 std::span<const NamedKernel> kernels,
                                                 std::span<const LoweredProblem> problems);

}  // namespace tilewise::tools
