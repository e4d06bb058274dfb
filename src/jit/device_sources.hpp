// The headers under src/device, embedded into the library when it is built.
#pragma once

#include <span>
#include <string_view>

namespace tilewise::jit {

struct DeviceSource {
  std::string_view path;  ///< as included: "device/common/mask.h"
  std::string_view text;
};

/// Sorted by path.
[[nodiscard]] std::span<const DeviceSource> device_sources();

}  // namespace tilewise::jit
