// Configs of the Hopper backward kernel: what a problem has untuned, and what `tilewise tune` may try. Pure functions
// of the problem and the device.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/device_description.hpp"
#include "device/hopper/config.h"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

/// Tiles of queries by what shared memory holds: two stages of 128 up to head_dim 64, else three of 64.
[[nodiscard]] device::HopperBwdConfig bwd_config(const Problem& problem, const core::DeviceDescription& device);

/// The backward kernel, and the parts in which it takes the queries of each tile of keys.
struct BwdSchedule {
  device::HopperBwdConfig config;
  std::int64_t splits = 1;
};

/// That of an untuned problem.
[[nodiscard]] BwdSchedule bwd_schedule(const Problem& problem, const core::DeviceDescription& device);

/// The schedules that a problem can have, first the one that it has untuned: dq's sums in a fixed order or in none,
/// tiles of keys scheduled by a counter or a block for each, dq rounded beside them or by a launch of its own, and
/// parts of the queries. Results that must not depend on the batch have the first alone.
[[nodiscard]] std::vector<BwdSchedule> bwd_candidates(const Problem& problem, const core::DeviceDescription& device);
/// "128x64/3/fixed order/persistent": keys, queries and stages of queries; behind them whether dq's sums have an order,
/// tiles of keys are scheduled by a counter, dq is rounded beside them, and the parts of the queries.
[[nodiscard]] std::string name_of(const BwdSchedule& schedule);
/// The candidate of that name; the untuned one where there is none.
[[nodiscard]] BwdSchedule tuned_bwd_schedule(const Problem& problem, const core::DeviceDescription& device,
                                             std::string_view name);

/// For explain(): "hopper_bwd 128x64 tiles, 2 warpgroups, 3 stages".
[[nodiscard]] std::string describe(const BwdSchedule& schedule);

}  // namespace tilewise::backends::hopper
