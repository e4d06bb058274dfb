// The emulation as a runtime of kernels, one small device for each family of matrix instructions.
#pragma once

#include "gpu/runtime.hpp"

namespace tilewise::backends::emulation {

/// "emulation.sm80", ...
[[nodiscard]] std::string_view name_of(gpu::Family family);
/// Answers for any index.
[[nodiscard]] gpu::FindRuntime runtime_of(gpu::Family family);

}  // namespace tilewise::backends::emulation
