// What `tilewise compile` writes beside the code objects: everything that a bare driver must be told to launch them.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/device_description.hpp"
#include "gpu/compile_ahead.hpp"
#include "gpu/stand_ins.hpp"
#include "tilewise/any_problem.hpp"

namespace tilewise::tools {

/// A problem, the implementation that takes it and in which steps, and a call on contiguous tensors
/// (gpu::AheadOfTime).
struct LoweredProblem {
  AnyProblem problem;
  std::string_view implementation;
  gpu::Lowering lowering;
  gpu::DescribedCall contiguous_call;
};

/// A compiled kernel under the name of its file, such as "forward.cubin".
struct NamedKernel {
  std::string file;
  const gpu::KernelBuild* build;
};

/// Names for kernels in the order of their first launch: forward, bwd_dkdv, bwd_dkdv_2, ...
[[nodiscard]] std::vector<NamedKernel> name_kernels(std::span<const gpu::KernelBuild> builds);

[[nodiscard]] nlohmann::ordered_json launch_json(const core::DeviceDescription& device,
                                                 std::span<const NamedKernel> kernels,
                                                 std::span<const LoweredProblem> problems);

/// Of a launch what the call decides: the block's values, what its pointers point to, and its tensor maps.
[[nodiscard]] nlohmann::ordered_json bound_json(const gpu::Launch& launch, const gpu::DescribedCall& call);
/// The fields of a kernel's parameter block.
[[nodiscard]] nlohmann::ordered_json parameters_json(const gpu::KernelBody& body);

}  // namespace tilewise::tools
