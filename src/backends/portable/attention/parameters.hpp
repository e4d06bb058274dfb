// What each pointer in the parameter blocks of the attention kernels points to: the one table that workspaces, the
// emulation's memory checks and launch.json go by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "device/attention/params.h"
#include "gpu/parameters.hpp"

namespace tilewise::backends::portable {

using gpu::RegionVisitor;

/// What TileClasses point to, by their own rows (device::TileRows).
[[nodiscard]] gpu::Region region_of_tiles(std::int32_t rows, std::int64_t bytes, gpu::Access access);

/// The part of the workspace that has a block mask's states.
inline constexpr std::string_view kBlockStatesPart = "block_states";

/// Those that have the sums of selected keys.
inline constexpr std::string_view kSelectedDk = "selected_dk", kSelectedDv = "selected_dv";

void for_each_pointer(const device::BlockStatesParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::MaskTilesParams& p, const RegionVisitor& visit);
/// What that kernel has found, in the block that begins at `block`.
void visit_tile_classes(const device::TileClasses<const std::uint8_t>& classes, const std::byte* block,
                        const RegionVisitor& visit);
/// Those of the tables that functions of scores look up, which stand in the block that begins at `block`.
void for_each_table(std::span<const device::ScoreTable, device::kMostTables> tables, const std::byte* block,
                    const RegionVisitor& visit);

void for_each_pointer(const device::ForwardParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::CombineParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdPreprocessParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdDqParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdDkdvParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdConvertDqParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdConvertDkdvParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdConvertSelectedParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdDbiasParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdDtableParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdTableSumsParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdDsinkParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::ClearRestParams& p, const RegionVisitor& visit);

}  // namespace tilewise::backends::portable
