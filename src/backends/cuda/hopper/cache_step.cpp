// What the kernels of the KV cache step share; see cache_step.hpp.
#include "backends/cuda/hopper/cache_step.hpp"

#include <algorithm>

#include "backends/cuda/hopper/combine.hpp"
#include "backends/portable/kv_cache/kernels.hpp"
#include "backends/portable/kv_cache/schedule.hpp"

namespace tilewise::backends::hopper {

device::AttendedRows CacheCalls::keys_of(const void* call) {
  const operations::kv_cache::KvCacheParams& params = params_of(call);
  device::AttendedRows rows = of(call);
  rows.batch_size = params.cache_rows;
  rows.seqlen_k = params.cache_rows == 0 ? 0 : params.row_places;
  return rows;
}

namespace {

void bind_combine(const void* call, void* block) {
  portable::bind(CacheCalls::params_of(call), *static_cast<device::KvCacheCombineParams*>(block));
}

}  // namespace

void add_cache_combine(const Problem& attention, std::int64_t splits, gpu::LoweringBuilder& builder) {
  add_combine<portable::KvCacheCombine>(portable::kv_cache_combine_config(attention), attention, splits, bind_combine,
                                        builder);
}

void add_scheduled_combine(const Problem& attention, const device::KeySchedule& key_schedule, int multiprocessors,
                           gpu::LoweringBuilder& builder) {
  using Kernel = portable::KvCacheCombine;
  constexpr std::int64_t kBlocksAtOnce = 5;  // that a multiprocessor has registers for
  Kernel::Config config = portable::kv_cache_combine_config(attention);
  config.schedules_keys = config.takes_turns = 1;
  const std::int64_t tiles = portable::combine_tiles(attention, config, device::kMostSplits, gpu::Family::sm80);
  const std::int64_t pieces = tiles * attention.num_heads_q * attention.batch_size;
  const std::int64_t blocks = std::min(pieces, kBlocksAtOnce * multiprocessors);
  Kernel::Params params{};
  params.shape = operations::attention::shape_of(attention);
  params.grid = device::tile_grid(blocks, 1, 1, portable::group_of(attention));
  params.key_schedule = key_schedule;
  builder.launch<Kernel>(gpu::Family::sm80, config, {static_cast<std::uint32_t>(blocks)}, params, bind_combine);
}

}  // namespace tilewise::backends::hopper
