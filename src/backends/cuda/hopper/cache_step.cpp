// The portable launch that joins parts of the keys.
#include "backends/cuda/hopper/cache_step.hpp"

#include "backends/portable/attention/schedule.hpp"
#include "backends/portable/kv_cache/bind.hpp"
#include "backends/portable/kv_cache/kernels.hpp"
#include "backends/portable/kv_cache/schedule.hpp"
#include "core/ceil_div.hpp"
#include "operations/attention/call.hpp"

namespace tilewise::backends::hopper {

void add_cache_combine(const Problem& attention, std::int64_t splits, gpu::LoweringBuilder& builder) {
  const device::KvCacheCombineConfig config = portable::kv_cache_combine_config(attention);
  const std::int64_t tiles = core::ceil_div(attention.seqlen_q, splits > device::kRowSplits ? 1 : config.waves);
  device::KvCacheCombineParams params{};
  params.shape = operations::attention::shape_of(attention);
  params.grid = device::tile_grid(tiles, 1, attention.num_heads_q, portable::group_of(attention));
  params.num_splits = splits;
  const auto bind_params = [](const void* call, void* block) {
    portable::bind(*static_cast<const operations::kv_cache::KvCacheParams*>(call),
                   *static_cast<device::KvCacheCombineParams*>(block));
  };
  const gpu::Extent3 grid{static_cast<std::uint32_t>(tiles * attention.num_heads_q * attention.batch_size)};
  builder.launch<portable::KvCacheCombine>(gpu::Family::sm80, config, grid, params, bind_params);
}

}  // namespace tilewise::backends::hopper
