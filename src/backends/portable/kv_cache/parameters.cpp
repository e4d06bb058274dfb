// What each pointer of a parameter block points to: name, access and extent.
#include "backends/portable/kv_cache/parameters.hpp"

#include "backends/portable/kv_cache/cache_table.hpp"
#include "backends/portable/kv_cache/kernels.hpp"

namespace tilewise::backends::portable {
namespace {

/// Rows that parts of the keys leave in the workspace: of all sequences together, or `splits` of each.
template <typename Params>
std::int64_t rows_of_parts(const Params& p, std::int64_t splits) {
  const std::int64_t entries = p.deal.places > 0 ? p.deal.places : splits * p.shape.batch_size;
  return entries * p.shape.num_heads_q * p.shape.seqlen_q;
}

template <typename Params>
void add_dealt_parts(const CacheTable<Params>& table, const Params& p, Access access) {
  table.add(p.deal.parts, {.name = "dealt_parts",
                           .workspace = true,
                           .access = access,
                           .element_bytes = sizeof(std::int64_t),
                           .row = p.deal.leaves_parts(p.shape.batch_size) ? p.shape.batch_size : 0});
}

}  // namespace

void for_each_pointer(const device::KvCacheForwardParams& p, const RegionVisitor& visit) {
  const CacheTable table(p, visit);
  table.lengths();
  table.score();
  table.cache_lengths();
  table.queries(p.q, "q", Access::read);
  table.rotary(p.rotary);
  table.new_keys();
  const Access caches = p.appends ? Access::write : Access::read;
  table.cache(p.k_cache, "k_cache", caches, p.shape.head_dim);
  table.cache(p.v_cache, "v_cache", caches, p.shape.head_dim_v);
  table.scale(p.k_scale, "k_scale", caches);
  table.scale(p.v_scale, "v_scale", caches);
  table.outs(p.out, "out", Access::write);
  table.lse(p.softmax_lse, "softmax_lse", Access::write);
  table.sink(p.sink, "sink", Access::read);
  const std::int64_t rows = rows_of_parts(p, p.grid.num_splits > 1 ? p.grid.num_splits : 0);
  table.workspace(p.out_accum, "out_accum", Access::write, rows * p.shape.head_dim_v);
  table.workspace(p.lse_accum, "lse_accum", Access::write, rows);
  add_dealt_parts(table, p, Access::write);
}

void for_each_pointer(const device::KvCacheCombineParams& p, const RegionVisitor& visit) {
  const CacheTable table(p, visit);
  table.lengths();
  table.cache_lengths();
  table.outs(p.out, "out", Access::write);
  table.lse(p.softmax_lse, "softmax_lse", Access::write);
  table.sink(p.sink, "sink", Access::read);
  const std::int64_t rows = rows_of_parts(p, p.num_splits);
  table.workspace(p.out_accum, "out_accum", Access::read, rows * p.shape.head_dim_v);
  table.workspace(p.lse_accum, "lse_accum", Access::read, rows);
  add_dealt_parts(table, p, Access::read);
}

void for_each_pointer(const device::AppendKvParams& p, const RegionVisitor& visit) {
  const CacheTable table(p, visit);
  table.lengths();
  table.cache_lengths();
  table.new_keys();
  table.cache(p.k_cache, "k_cache", Access::write, p.shape.head_dim);
  table.cache(p.v_cache, "v_cache", Access::write, p.shape.head_dim_v);
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
