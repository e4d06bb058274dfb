// What `tilewise tune` found, on disk beside the compiled kernels: a text file for each kind of device.
#pragma once

#include <string>

#include "core/device_description.hpp"
#include "core/visibility.hpp"

namespace tilewise::jit {

/// Those of a kind of device, named as in "sm_90a-132" (architecture and multiprocessors). Null where there are none,
/// where another version of Tilewise wrote them, or where somebody else may have (trust.hpp).
[[nodiscard]] TILEWISE_INTERNAL std::shared_ptr<const core::TunedSchedules> load_tuned_schedules(
    const std::string& device_kind);

/// Replaces those of a kind of device. Throws Error(runtime) where they can't be written.
TILEWISE_INTERNAL void store_tuned_schedules(const std::string& device_kind, const core::TunedSchedules& schedules);

}  // namespace tilewise::jit
