// The device headers that a stub reaches: what a compiler is given and what identifies a kernel.
#pragma once

#include <string_view>
#include <vector>

#include "jit/device_sources.hpp"

namespace tilewise::jit {

/// Every device header that `stub` includes, directly or not and whatever #if stands around it, sorted by path. Throws
/// Error (invalid_argument) where a quoted include names none.
[[nodiscard]] std::vector<const DeviceSource*> reachable_headers(std::string_view stub);

}  // namespace tilewise::jit
