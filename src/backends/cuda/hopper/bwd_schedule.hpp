// How the backward pass deals its work out: the order of tiles of keys, and parts of the queries that see them. Pure
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

/// Shares of a key head's query heads that have tiles of keys of their own. One for all of them has no sums of dk and
/// dv to add up in memory: that takes an H200 17% less at 512 causal keys (16 heads of 128 on 4, 16,384 tokens). But in
/// an order of dq's sums the longest tiles of keys come last, which shares of two heads make shorter: 1k, 2k and 4k
/// take 10, 16 and 17% less then. With a share for each head fewer heads' queries and dq are worked on at a time: an
/// H100 takes 13% less than with two at 2k and 16% at 4k, but 4% more at 64 columns and 2k; an H200, whose memory is
/// quicker, 1 to 3% more. In an order both ways 1% less from 4k on, and of 192 and 128 columns 8% from 2k on.
[[nodiscard]] std::int64_t head_shares(const Problem& problem, const device::HopperBwdConfig& config,
                                       const core::DeviceDescription& device);
/// Whether a window is short.
[[nodiscard]] bool looks_near(const Problem& problem, const device::HopperBwdConfig& config);

[[nodiscard]] device::TileOrder key_order(const Problem& problem, const device::HopperBwdConfig& config,
                                          const core::DeviceDescription& device);

/// The query heads whose statistics are made before gradients begin, as many as the device works on at first. Those of
/// the others are made meanwhile, by late_blocks() multiprocessors, where 34 us of all of them stood in front: of
/// 16,384 tokens in 16 heads of 128 on an H200, causal, 512, 1k, 2k and 4k take 4.6, 6.0, 3.4 and 2.3% less, a window
/// of 1,024 3.9%. With 6 and 8 blocks short sequences wait for them (512 16% longer and level), with 16 they lack as
/// many more.
[[nodiscard]] std::int64_t first_heads(const Problem& problem, const device::HopperBwdConfig& config,
                                       const core::DeviceDescription& device);
/// Whether there are others, and whether that is quicker: where a query sees few keys gradients are done before so few
/// blocks have made all statistics (at 128 columns causal 256 and 300 take 10 and 16% longer, 384 and 448 1.5% less and
/// 2.7% more, 512 3.5 to 5% less; to 64 columns 128 77% longer, 256 1.3% less), and of sequences whose lengths the
/// device reads later (packed causal 384 22% longer, 1k 3.4% less). Wide heads whose lengths the device reads have no
/// registers to wait for them (96 to 100 bytes of spills), and softcap without a mask in a fixed order to 128 columns,
/// whose computing warps spill 8 bytes more then, takes 2.9% longer (H200).
[[nodiscard]] bool has_late_statistics(const Problem& problem, const device::HopperBwdConfig& config,
                                       const core::DeviceDescription& device);
/// `clears`: they clear dq's sums, too.
[[nodiscard]] std::int64_t late_blocks(bool clears, const core::DeviceDescription& device);

/// Whether each query sees a key for certain, so that some tile of keys begins its sums.
[[nodiscard]] bool each_query_sees_a_key(const Problem& problem, const device::HopperBwdConfig& config);

/// Parts that the queries of a tile of keys come in, each of some tiles of every head of a group.
[[nodiscard]] std::int64_t query_parts(const Problem& problem, const device::HopperBwdConfig& config,
                                       const core::DeviceDescription& device);

}  // namespace tilewise::backends::hopper
