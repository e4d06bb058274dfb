// What `tilewise compile` writes beside the code objects: everything that a bare driver must be told to launch them.
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/device_description.hpp"
#include "gpu/compile_ahead.hpp"
#include "tilewise/any_problem.hpp"

namespace tilewise::tools {

/// A problem, the steps it takes, and the parameters of a call on contiguous tensors (gpu::AheadOfTime).
struct LoweredProblem {
  AnyProblem problem;
  gpu::Lowering lowering;
  std::shared_ptr<const void> contiguous_call;
};

/// A compiled kernel under the name of its file, such as "forward.cubin".
struct NamedKernel {
  std::string file;
  const gpu::KernelBuild* build;
};

/// Names for kernels in the order of their first launch: forward, bwd_dkdv, bwd_dkdv_2, ...
[[nodiscard]] std::vector<NamedKernel> name_kernels(std::span<const gpu::KernelBuild> builds);

[[nodiscard]] nlohmann::ordered_json launch_json(std::string_view implementation, const core::DeviceDescription& device,
                                                 std::span<const NamedKernel> kernels,
                                                 std::span<const LoweredProblem> problems);

}  // namespace tilewise::tools
