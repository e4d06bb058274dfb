// Tiles of the forward kernel, measured on an H200 (docs/hopper.md).
#pragma once

#include <cstdint>
#include <vector>

#include "device/hopper/config.h"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

/// How a tile of queries and keys is cut: consumers x 64 rows, block_n keys, and how many tiles are on their way.
struct Tile {
  std::int32_t consumers, block_n, stages, q_stages;
  bool watch_sums;
  bool clustered = false;  // two blocks load each tile of keys for both
};

/// The table's, for a config that has the problem's features.
[[nodiscard]] const Tile& tile_for(const Problem& problem, const device::HopperForwardConfig& config);

/// Two consumer warpgroups where the table has more: more tiles for multiprocessors that have none, and a full block
/// of 128 rows where three warpgroups would leave a third of theirs empty.
[[nodiscard]] Tile pair_for(const Tile& tile, const device::HopperForwardConfig& config);

/// The table's tile; and what else may be quicker: pairs of warpgroups, blocks that share no keys and, where scores are
/// no more than scaled, the tiles of neighbouring head dims.
[[nodiscard]] std::vector<Tile> tiles_to_try(const Problem& problem, const device::HopperForwardConfig& config);

}  // namespace tilewise::backends::hopper
