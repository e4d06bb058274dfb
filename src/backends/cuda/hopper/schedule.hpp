// Configs of the Hopper kernels, and the order of their tiles: pure functions of the problem and the device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/hopper/kernels.hpp"
#include "backends/portable/attention/functions.hpp"
#include "core/device_description.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

/// Whether what dropout's draws are compared with is, as bits of bf16, a normal number.
[[nodiscard]] bool has_normal_bound(const Problem& problem);

/// The forward kernel, and the parts in which it takes the keys of each tile of queries.
struct ForwardSchedule {
  device::HopperForwardConfig config;
  std::int64_t splits = 1;
};

/// As `tilewise tune` has chosen, else by the table of tiles, and where tiles of queries are few, by what the estimate
/// makes of them. num_splits: parts that the call asks for; 0: chosen. page_size: of a cache that has the keys, 0 where
/// it is contiguous.
[[nodiscard]] ForwardSchedule forward_schedule(const Problem& problem, const core::DeviceDescription& device,
                                               std::int64_t num_splits = 0,
                                               std::optional<std::int64_t> page_size = std::nullopt);

/// The schedules that a problem can have, first the one that it has untuned. Results that must not depend on the batch
/// have that one alone.
[[nodiscard]] std::vector<ForwardSchedule> forward_candidates(const Problem& problem,
                                                              const core::DeviceDescription& device);
/// "192x64/4/2": rows, keys, stages of keys and of queries; behind them whether blocks share keys, and the parts of the
/// keys.
[[nodiscard]] std::string name_of(const ForwardSchedule& schedule);
/// The problem's text, whether or not its log-sum-exp is wanted and rows of no sequence are cleared.
[[nodiscard]] std::string tuning_text(const Problem& problem);
/// The name of the schedule that was tuned for a problem, forward or backward; null where none was.
[[nodiscard]] const std::string* tuned_name(const Problem& problem, const core::DeviceDescription& device);
/// The candidate of that name; the untuned one where there is none.
[[nodiscard]] ForwardSchedule tuned_schedule(const Problem& problem, const core::DeviceDescription& device,
                                             std::string_view name);

[[nodiscard]] device::TileOrder tile_order(const Problem& problem, const ForwardSchedule& schedule,
                                           int multiprocessors);
/// Tiles of queries, times parts of their keys.
[[nodiscard]] std::int64_t tile_count(const device::TileOrder& order);

/// How the kernel asks a problem's functions, and whether it walks over tiles by what mask_tiles has found.
[[nodiscard]] portable::FunctionUse function_use(const Problem& problem, const device::HopperForwardConfig& config);
[[nodiscard]] bool skips_tiles(const Problem& problem, const device::HopperForwardConfig& config);

/// Queries of a block, each with all heads of a group where heads are packed.
[[nodiscard]] std::int64_t queries_of_block(const Problem& problem, const device::HopperForwardConfig& config);
/// Tiles of queries of all heads and sequences.
[[nodiscard]] std::int64_t tiles_of(const Problem& problem, const device::HopperForwardConfig& config);

/// For explain(): "192x64 tiles, 3 warpgroups, 4 stages".
[[nodiscard]] std::string describe(const ForwardSchedule& schedule);

}  // namespace tilewise::backends::hopper
