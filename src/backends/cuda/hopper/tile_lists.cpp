// See tile_lists.hpp.
#include "backends/cuda/hopper/tile_lists.hpp"

#include "backends/cuda/hopper/kernels.hpp"
#include "backends/portable/attention/bind.hpp"
#include "backends/portable/attention/estimate.hpp"
#include "backends/portable/attention/launch_with_functions.hpp"
#include "core/ceil_div.hpp"
#include "operations/attention/call.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::ceil_div;
using Classes = device::TileClasses<const std::uint8_t>;

/// Of each entry of the batch where these differ, as those of a cache's sequences do, and of heads likewise.
portable::MaskTilesStep add_mask_tiles(const Problem& p, const portable::DeviceTraits& traits,
                                       const SkippedTiles& tiles, gpu::LoweringBuilder& builder) {
  if (!portable::knows_tiles(p, tiles.use.tiles)) return {};
  const device::HopperMaskTilesConfig& config = tiles.config;
  const bool keys_own = config.keys_own != 0;
  const std::int64_t own = ceil_div(keys_own ? p.seqlen_k : p.seqlen_q, std::int64_t{config.own} * config.parts);
  const std::int64_t streamed = ceil_div(keys_own ? p.seqlen_q : p.seqlen_k, std::int64_t{config.streamed});
  const bool differ = config.cached || portable::has_tiles_of_entries(p);
  const std::int64_t entries = differ ? p.batch_size : 1;
  const std::int64_t heads = portable::has_tiles_of_heads(p) ? p.num_heads_q / tiles.heads_of_kernel_head : 1;
  const std::int64_t rows = heads * own;  // of an entry
  MaskTiles::Params params{};
  params.shape = operations::attention::shape_of(p);
  params.classes = {nullptr, differ ? rows * streamed : 0, entries * rows * streamed,
                    static_cast<std::int32_t>(streamed), keys_own ? device::kKeyTiles : device::kQueryTiles};
  const std::int64_t splits = ceil_div(streamed, std::int64_t{config.waves});
  params.grid = device::tile_grid(own, splits, heads, tiles.heads_of_kernel_head);
  const gpu::Extent3 grid{static_cast<std::uint32_t>(rows * splits * entries)};
  if (portable::launch_with_functions<MaskTiles>(p, traits.family, config, grid, params, {}, tiles.bind, builder,
                                                 tiles.use) == nullptr) {
    return {};
  }
  const auto& c = params.classes;
  return {{nullptr, c.batch_stride, c.bytes, c.streamed, c.rows},
          portable::Estimator::kLaunchUs + portable::Estimator(p, traits).mask_tiles_us(entries * heads)};
}

}  // namespace

portable::KnownTiles known_tiles(const Problem& p) {
  constexpr std::int64_t kMostBatch = std::int64_t{1} << device::HopperMaskTilesConfig::kBatchBits,
                         kMostHeads = std::int64_t{1} << (31 - device::HopperMaskTilesConfig::kBatchBits);
  // Lists of each head take memory: of 32 heads and a batch of 1 up to 64k tokens, by 5 bytes a tile of 128x64.
  constexpr std::int64_t kMostTiles = std::int64_t{1} << 24;
  const bool fits = p.batch_size <= kMostBatch && p.num_heads_q <= kMostHeads;
  const std::int64_t tiles = ceil_div(p.seqlen_q, std::int64_t{128}) * ceil_div(p.seqlen_k, std::int64_t{64});
  return fits && tiles * p.num_heads_q * p.batch_size <= kMostTiles ? portable::KnownTiles::of_each_head
                                                                    : portable::KnownTiles::of_all_heads;
}

portable::MaskTilesStep add_tile_lists(const Problem& p, const portable::DeviceTraits& traits,
                                       const SkippedTiles& skipped, gpu::LoweringBuilder& builder) {
  const portable::MaskTilesStep step = add_mask_tiles(p, traits, skipped, builder);
  const Classes& classes = step.classes;
  if (classes.bytes == 0) return step;
  device::HopperTileListsConfig c;
  c.ranges = skipped.config.keys_own;
  const std::int64_t tiles = classes.streamed, num_rows = classes.bytes / tiles, row_bytes = c.row_bytes(tiles);
  device::HopperTileListsParams params{};
  params.classes = classes;
  params.lists = {nullptr, classes.batch_stride / tiles * row_bytes, num_rows * row_bytes,
                  static_cast<std::int32_t>(row_bytes), c.ranges ? device::kQueryTileRanges : device::kListedKeyTiles};
  params.num_rows = static_cast<std::int32_t>(num_rows);
  const gpu::Extent3 grid{static_cast<std::uint32_t>(ceil_div(num_rows, std::int64_t{c.waves}))};
  builder.launch<TileLists>(gpu::Family::sm90, c, grid, params, [](const void*, void*) {});
  const auto& lists = params.lists;
  return {{nullptr, lists.batch_stride, lists.bytes, lists.streamed, lists.rows},
          step.estimated_us + portable::Estimator::kLaunchUs};
}

void bind_mask_tiles(const void* call, void* block) {
  const auto& from = *static_cast<const device::AttentionParams*>(call);
  auto& params = *static_cast<device::WithTables<device::HopperMaskTilesParams>*>(block);
  params.shape = from;
  portable::bind_tables(from, params.tables);
}

}  // namespace tilewise::backends::hopper
