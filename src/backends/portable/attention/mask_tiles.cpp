// mask_tiles and its grid; see mask_tiles.hpp.
#include "backends/portable/attention/mask_tiles.hpp"

#include "backends/portable/attention/bind.hpp"
#include "backends/portable/attention/estimate.hpp"
#include "backends/portable/attention/functions.hpp"
#include "backends/portable/attention/kernels.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "core/ceil_div.hpp"
#include "operations/attention/call.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div;
using Kernel = WithFunctions<MaskTiles>;

void bind_mask_tiles(const void* call, void* block) {
  const auto& from = *static_cast<const device::AttentionParams*>(call);
  auto& params = *static_cast<Kernel::Params*>(block);
  bind(from, static_cast<device::MaskTilesParams&>(params));
  bind_tables(from, params.tables);
}

}  // namespace

MaskTilesStep add_mask_tiles(const Problem& p, const DeviceTraits& traits, const device::MaskTilesConfig& config,
                             gpu::LoweringBuilder& builder) {
  if (!knows_tiles(p)) return {};
  const bool keys_own = config.keys_own != 0;
  const std::int64_t own = ceil_div(keys_own ? p.seqlen_k : p.seqlen_q, std::int64_t{config.own} * config.parts);
  const std::int64_t streamed = ceil_div(keys_own ? p.seqlen_q : p.seqlen_k, std::int64_t{config.streamed});
  const std::int64_t entries = has_tiles_of_entries(p) ? p.batch_size : 1;
  Kernel::Params params{};
  params.shape = operations::attention::shape_of(p);
  params.classes = {nullptr, entries > 1 ? own * streamed : 0, entries * own * streamed,
                    static_cast<std::int32_t>(streamed), keys_own ? device::kKeyTiles : device::kQueryTiles};
  const std::int64_t splits = ceil_div(streamed, std::int64_t{config.waves});
  params.grid = device::tile_grid(own, splits, 1, group_of(p));
  set_tables(p, params.tables);
  const gpu::Extent3 grid{static_cast<std::uint32_t>(own * splits * entries)};
  gpu::Launch* const launch = builder.launch<Kernel>(traits.family, config, grid, params, bind_mask_tiles);
  if (launch == nullptr) return {};
  launch->key.definitions = function_definitions(p);
  const auto& c = params.classes;
  return {{nullptr, c.batch_stride, c.bytes, c.streamed, c.rows},
          Estimator::kLaunchUs + Estimator(p, traits).mask_tiles_us(entries)};
}

}  // namespace tilewise::backends::portable
