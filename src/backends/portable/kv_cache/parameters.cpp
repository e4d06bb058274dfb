// What each pointer of a parameter block points to: name, access and extent.
#include "backends/portable/kv_cache/parameters.hpp"

#include "backends/portable/kv_cache/cache_table.hpp"
#include "backends/portable/kv_cache/kernels.hpp"

namespace tilewise::backends::portable {
void for_each_pointer(const device::KvCacheForwardParams& p, const RegionVisitor& visit) {
  const CacheTable table(p, visit);
  table.lengths();
  table.score();
  table.cache_lengths();
  table.queries(p.q, "q", Access::read);
  table.rotary(p.rotary);
  table.new_keys();
  const Access caches = p.appends ? Access::write : Access::read;
  table.cache(p.k, "k_cache", caches, p.shape.head_dim);
  table.cache(p.v, "v_cache", caches, p.shape.head_dim_v);
  table.scale(p.k_scale, "k_scale", caches);
  table.scale(p.v_scale, "v_scale", caches);
  table.outs(p.out, "out", Access::write);
  table.lse(p.softmax_lse, "softmax_lse", Access::write);
  table.sink(p.sink, "sink", Access::read);
  table.selected(p.key_indices);
  table.parts_of_keys(p.grid.num_splits > 1 ? p.grid.num_splits : 0, Access::write);
}

void for_each_pointer(const device::KvCacheMaskTilesParams& p, const RegionVisitor& visit) {
  const CacheTable table(p, visit);
  table.lengths();
  table.cache_lengths();
  table.add(p.classes.data, region_of_tiles(p.classes.rows, p.classes.bytes, Access::write));
}

void for_each_pointer(const device::KvCacheCombineParams& p, const RegionVisitor& visit) {
  const CacheTable table(p, visit);
  table.lengths();
  table.cache_lengths();
  table.outs(p.out, "out", Access::write);
  table.lse(p.softmax_lse, "softmax_lse", Access::write);
  table.sink(p.sink, "sink", Access::read);
  table.parts_of_keys(p.num_splits, Access::read);
}

void for_each_pointer(const device::AppendKvParams& p, const RegionVisitor& visit) {
  const CacheTable table(p, visit);
  table.lengths();
  table.cache_lengths();
  table.new_keys();
  table.cache(p.k, "k_cache", Access::write, p.shape.head_dim);
  table.cache(p.v, "v_cache", Access::write, p.shape.head_dim_v);
  table.scale(p.k_scale, "k_scale", Access::write);
  table.scale(p.v_scale, "v_scale", Access::write);
  table.rotary(p.rotary);
  const Rows rows = table.rows_of_new_keys();
  table.add(p.slots, {.name = "slots",
                      .element_bytes = static_cast<std::size_t>(p.slot_bytes),
                      .outer = {{{rows.batch, p.slots_batch_stride}, {rows.rows, p.slots_stride}}},
                      .rank = 2});
}

void for_each_pointer(const device::RotateQueriesParams& p, const RegionVisitor& visit) {
  const CacheTable table(p, visit);
  table.lengths();
  table.cache_lengths();
  table.queries(p.q, "q", Access::read);
  table.rotary(p.rotary);
  table.add(p.rotated.data, {.name = RotateQueries::kRotated,
                             .workspace = true,
                             .access = Access::write,
                             .element_bytes = kHalf,
                             .row = p.rows * p.shape.num_heads_q * p.shape.head_dim});
}

}  // namespace tilewise::backends::portable
