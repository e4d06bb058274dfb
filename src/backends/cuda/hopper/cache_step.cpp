// What the kernels of the KV cache step share; see cache_step.hpp.
#include "backends/cuda/hopper/cache_step.hpp"

#include <algorithm>

#include "backends/cuda/hopper/combine.hpp"
#include "backends/portable/kv_cache/kernels.hpp"
#include "backends/portable/kv_cache/schedule.hpp"

namespace tilewise::backends::hopper {

device::AttentionParams CacheCalls::of(const void* from) {
  const operations::kv_cache::KvCacheParams& call = params_of(from);
  device::AttentionParams attention{};
  attention.batch_size = call.batch_size;
  attention.seqlen_q = call.seqlen_q;
  attention.total_q = call.total_q;
  attention.seqlen_k = call.row_places;
  attention.num_heads_q = call.num_heads_q;
  attention.num_heads_k = call.num_heads_k;
  attention.head_dim = call.head_dim;
  attention.head_dim_v = call.head_dim_v;
  attention.cu_seqlens_q = call.cu_seqlens_q;
  attention.q = call.q;
  attention.k = call.k_cache;
  attention.v = call.v_cache;
  attention.out = call.out;
  return attention;
}

device::AttentionParams CacheCalls::keys_of(const void* call) {
  device::AttentionParams attention = of(call);
  attention.batch_size = params_of(call).cache_rows;
  if (attention.batch_size == 0) attention.seqlen_k = 0;
  return attention;
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
