// What each pointer of a parameter block points to; see parameters.hpp.
#include "backends/cuda/hopper/parameters.hpp"

#include <algorithm>
#include <cstdint>

#include "backends/portable/kv_cache/cache_table.hpp"

namespace tilewise::backends::hopper {

void for_each_pointer(const device::HopperMaskTilesParams& p, const gpu::RegionVisitor& visit) {
  const portable::CacheTable table(p, visit);
  table.lengths();
  table.cache_lengths();
  table.add(p.classes.data, portable::region_of_tiles(p.classes.rows, p.classes.bytes, gpu::Access::write));
}

void for_each_pointer(const device::HopperTileListsParams& p, const gpu::RegionVisitor& visit) {
  const auto region_of = [](const auto& tiles, gpu::Access access) {
    return portable::region_of_tiles(tiles.rows, tiles.bytes, access);
  };
  gpu::visit_pointer(p, p.classes.data, region_of(p.classes, gpu::Access::read), visit);
  gpu::visit_pointer(p, p.lists.data, region_of(p.lists, gpu::Access::write), visit);
}

void for_each_pointer(const device::HopperForwardParams& p, const gpu::RegionVisitor& visit) {
  using gpu::Access;
  const portable::CacheTable table(p, visit);
  table.lengths();
  table.score();
  table.outs(p.out, "out", Access::write);
  table.lse(p.softmax_lse, "softmax_lse", Access::write);
  table.sink(p.sink, "sink", Access::read);
  table.cache_lengths();
  const device::AttentionShape& s = p.shape;
  table.scales(p.q_scale, "q_scale", s.num_heads_q / std::max<std::int64_t>(p.q_scale.heads, 1));
  table.scales(p.k_scale, "k_scale", s.num_heads_k);
  table.scales(p.v_scale, "v_scale", s.num_heads_k);
  gpu::Region counter = gpu::float_workspace("tile_counter", Access::add, p.order.counters);
  counter.one_writer = false;  // one block opens it, one closes it, and all add
  table.add(p.tile_counter, counter);
  const std::int64_t rows = p.order.num_splits > 1 ? p.order.num_splits * table.statistics() : 0;
  table.workspace(p.out_accum, "out_accum", Access::write, rows * s.head_dim_v);
  table.workspace(p.lse_accum, "lse_accum", Access::write, device::kLseNumbers * rows);
}

void for_each_pointer(const device::HopperBwdPreprocessParams& p, const gpu::RegionVisitor& visit) {
  using gpu::Access;
  const portable::PointerTable table(p, visit);
  table.lengths();
  table.queries(p.dq, "dq", Access::write);
  table.lse(p.softmax_lse, "softmax_lse", Access::read);
  table.lse(p.dlse, "dlse", Access::read);
  table.workspace(p.lse2, "lse2", Access::write, table.heads() * p.rows_a_head);
  table.workspace(p.delta, "tile_delta", Access::write, table.heads() * p.rows_a_head);
  table.workspace(p.dq_accum, "dq_accum", Access::write, table.heads() * p.dq_accum_a_head);
  table.workspace(p.dense_delta, "delta", Access::write, table.heads() * p.dense_rows_a_head);
  table.add(p.turns, gpu::float_workspace("turns", Access::write, p.all_turns));
  table.add(p.tile_counter, gpu::float_workspace("tile_counter", Access::write, p.counters));
  table.add(p.dkdv_turns, gpu::float_workspace("dkdv_turns", Access::write, p.gradient_turns));
  gpu::Region done = gpu::float_workspace("tiles_done", Access::add, p.late_blocks > 0 ? p.tiles : 0);
  done.one_writer = false;  // one thread clears a word, another sets it
  table.add(p.tiles_done, done);
}

void for_each_pointer(const device::HopperBwdParams& p, const gpu::RegionVisitor& visit) {
  using gpu::Access;
  const portable::PointerTable table(p, visit);
  table.lengths();
  table.score();
  table.keys(p.dk, "dk", Access::write);
  table.values(p.dv, "dv", Access::write);
  table.queries(p.dq, "dq", Access::write);
  table.workspace(p.lse2, "lse2", Access::read, table.heads() * p.rows_a_head);
  table.workspace(p.delta, "tile_delta", Access::read, table.heads() * p.rows_a_head);
  gpu::Region sums = gpu::float_workspace("dq_accum", Access::add, table.heads() * p.dq_accum_a_head);
  sums.one_writer = p.turns_a_head == 0;  // in turn one stores and others add
  table.add(p.dq_accum, sums);
  gpu::Region turns = gpu::float_workspace("turns", Access::add, table.heads() * p.turns_a_head);
  turns.one_writer = false;  // blocks hand them on
  table.add(p.turns, turns);
  const device::TileOrder& order = p.order;
  const std::int64_t tiles = std::int64_t{p.tiles} * order.num_heads * order.batch_size;
  const bool shared = p.shares > 1;
  const auto add_shared = [&](const auto& pointer, const char* name, std::int64_t count) {
    gpu::Region region = gpu::float_workspace(name, shared ? Access::add : Access::write, count);
    region.one_writer = !shared;  // in turn one stores, others add and the last one reads
    table.add(pointer, region);
  };
  add_shared(p.dk_accum, "dk_accum", tiles * order.num_splits * p.dk_accum_a_block);
  add_shared(p.dv_accum, "dv_accum", tiles * order.num_splits * p.dv_accum_a_block);
  add_shared(p.dkdv_turns, "dkdv_turns", shared ? tiles * device::kGradientWarps : 0);
  gpu::Region counter = gpu::float_workspace("tile_counter", Access::add, p.order.counters);
  counter.one_writer = false;  // all blocks add
  table.add(p.tile_counter, counter);
  table.add(p.preprocess_done, gpu::float_workspace("tiles_done", Access::read, table.heads() * p.preprocess_tiles));
}

void for_each_pointer(const device::HopperBwdConvertDqParams& p, const gpu::RegionVisitor& visit) {
  using gpu::Access;
  const portable::PointerTable table(p, visit);
  table.lengths();
  table.queries(p.dq, "dq", Access::write);
  table.workspace(p.lse2, "lse2", Access::read, table.heads() * p.rows_a_head);
  table.workspace(p.dq_accum, "dq_accum", Access::read, table.heads() * p.dq_accum_a_head);
}

void for_each_pointer(const device::HopperLatentParams& p, const gpu::RegionVisitor& visit) {
  using gpu::Access;
  const portable::CacheTable table(p, visit);
  table.lengths();
  table.score();
  table.cache_lengths();
  table.cache(p.k, "k_cache", Access::read, p.shape.head_dim);
  table.selected(p.key_indices);
  table.outs(p.out, "out", Access::write);
  table.lse(p.softmax_lse, "softmax_lse", Access::write);
  table.parts_of_keys(p.order.num_splits > 1 ? p.order.num_splits : 0, Access::write);
}

}  // namespace tilewise::backends::hopper
