// How the backward pass schedules its work: the order of tiles of keys, and parts of the queries that see them. Pure
// functions of the problem and the device.
#pragma once

#include <cstdint>

#include "core/device_description.hpp"
#include "device/hopper/config.h"
#include "device/hopper/params.h"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

/// Tiles of keys of all key heads, each counted once.
[[nodiscard]] std::int64_t tiles_of_keys(const Problem& problem, const device::HopperBwdConfig& config);
/// The same, each once for every share of a key head's query heads.
[[nodiscard]] std::int64_t key_blocks(const Problem& problem, const device::HopperBwdConfig& config,
                                      const core::DeviceDescription& device);
/// As an H200's is, and an H100's not.
[[nodiscard]] bool has_quick_memory(const core::DeviceDescription& device);

/// Shares of a key head's query heads, each with tiles of keys of its own. One share for all heads has no sums of dk
/// and dv to add up in memory (17% less at 512 causal keys). In an order of dq's sums the longest tiles of keys come
/// last, and shares of two heads make them shorter (16% less at 2k). A share for each head has fewer heads' queries and
/// dq worked on at a time, which suits slow memory (an H100's) and long sequences.
[[nodiscard]] std::int64_t head_shares(const Problem& problem, const device::HopperBwdConfig& config,
                                       const core::DeviceDescription& device);
/// Whether a window is short.
[[nodiscard]] bool looks_near(const Problem& problem, const device::HopperBwdConfig& config);

[[nodiscard]] device::TileOrder key_order(const Problem& problem, const device::HopperBwdConfig& config,
                                          const core::DeviceDescription& device);

/// The query heads that are preprocessed before gradients begin, as many as the device works on at first. late_blocks()
/// multiprocessors preprocess the others meanwhile: 2 to 6% less time. With half as many blocks short sequences wait
/// for them.
[[nodiscard]] std::int64_t first_heads(const Problem& problem, const device::HopperBwdConfig& config,
                                       const core::DeviceDescription& device);
/// Whether there are others, and whether that is quicker: not where a query sees few keys, whose gradients are done
/// before so few blocks have preprocessed all heads. Wide heads whose lengths the device reads have no registers to
/// wait for them (100 bytes of spills), nor has softcap without a mask in a fixed order.
[[nodiscard]] bool has_late_preprocess(const Problem& problem, const device::HopperBwdConfig& config,
                                       const core::DeviceDescription& device);
/// `clears`: they clear dq's sums, too.
[[nodiscard]] std::int64_t late_blocks(bool clears, const core::DeviceDescription& device);

/// Whether each query sees a key for certain, so that some tile of keys begins its sums.
[[nodiscard]] bool each_query_sees_a_key(const Problem& problem, const device::HopperBwdConfig& config);

/// Parts that the queries of a tile of keys come in, each of some tiles of every head of a group.
[[nodiscard]] std::int64_t query_parts(const Problem& problem, const device::HopperBwdConfig& config,
                                       const core::DeviceDescription& device);

}  // namespace tilewise::backends::hopper
