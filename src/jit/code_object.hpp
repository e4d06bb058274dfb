// What a kernel costs to run, read from what the compiler left: AMD's metadata note, NVIDIA's log and cubin.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "jit/compiled_kernel.hpp"

namespace tilewise::jit {

/// From the note "AMDGPU" of a code object. None, with the reason in `fault`, where the bytes are no code object with
/// a kernel of this name; any bytes are fine.
[[nodiscard]] std::optional<KernelResources> amd_resources(std::span<const std::byte> image, std::string_view symbol,
                                                           std::string& fault);

/// From the log of ptxas -v and the launch bounds in the cubin; 0 for what is not found.
[[nodiscard]] KernelResources nvidia_resources(std::span<const std::byte> cubin, std::string_view log,
                                               std::string_view symbol);

}  // namespace tilewise::jit
