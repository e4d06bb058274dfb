// GPUs that need not be here, as `tilewise compile` and `tilewise explain` are told of them.
#pragma once

#include <string>
#include <string_view>

#include "core/device_description.hpp"
#include "core/select.hpp"
#include "gpu/architectures.hpp"
#include "tilewise/any_problem.hpp"

namespace tilewise::tools {

/// The device that the architecture's name stands for, with what was tuned for its kind here. `multiprocessors`: 0 for
/// those of a common product.
[[nodiscard]] core::DeviceDescription described_target(const gpu::Architecture& architecture, int multiprocessors);

/// Reads a problem, whose device follows from the target where the text leaves it out. Throws Error where it is for
/// another kind of device.
[[nodiscard]] AnyProblem read_problem(const std::string& text, const gpu::Architecture& architecture);

/// What dispatch would decide on the device: the whole walk. Of implementations that the target has no instructions
/// for, `implementation` may name none.
[[nodiscard]] core::Selection select_for(const AnyProblem& problem, const core::DeviceDescription& device,
                                         const std::string& implementation);

/// "sm_100: portable kernels; its tcgen05 is not used\n", or nothing.
[[nodiscard]] std::string note_on(const gpu::Architecture& architecture);

}  // namespace tilewise::tools
