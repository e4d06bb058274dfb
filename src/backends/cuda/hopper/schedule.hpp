// Configs of the Hopper kernels, and the order of their tiles: pure functions of the problem and the device.
#pragma once

#include <string>

#include "backends/cuda/hopper/kernels.hpp"
#include "core/device_description.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

[[nodiscard]] device::HopperForwardConfig forward_config(const Problem& problem);

[[nodiscard]] device::TileOrder tile_order(const Problem& problem, const device::HopperForwardConfig& config,
                                           int multiprocessors);
[[nodiscard]] std::int64_t tile_count(const device::TileOrder& order);

/// Microseconds, the launch included: a model fitted to an H200.
[[nodiscard]] double forward_us(const Problem& problem, const device::HopperForwardConfig& config,
                                const core::DeviceDescription& device);

/// For explain(): "192x64 tiles, 3 warpgroups, 4 stages".
[[nodiscard]] std::string describe(const device::HopperForwardConfig& config);

}  // namespace tilewise::backends::hopper
