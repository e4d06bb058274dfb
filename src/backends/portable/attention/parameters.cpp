// What each pointer of a parameter block points to: name, access and extent.
#include "backends/portable/attention/parameters.hpp"

#include "backends/portable/attention/pointer_table.hpp"
#include "operations/attention/score_functions.hpp"

namespace tilewise::backends::portable {
namespace {

using gpu::Access;

/// What kernels that see scores read.
template <typename Params>
void score_inputs(const PointerTable<Params>& table, const Params& p) {
  table.lengths();
  table.score();
  table.queries(p.q, "q", Access::read);
  table.keys(p.k, "k", Access::read);
  table.values(p.v, "v", Access::read);
}

/// Of two kernels of a pass, tiles of queries are own rows of one, and tiles of keys of the other.
template <typename Byte>
Region region_of(const device::TileClasses<Byte>& classes, Access access) {
  Region region{.name = classes.keys_own != 0 ? "key_tile_classes" : "query_tile_classes", .workspace = true};
  region.access = access;
  region.row = classes.bytes;
  return region;
}

/// What those of the backward pass read beside.
template <typename Params>
void gradient_inputs(const PointerTable<Params>& table, const Params& p) {
  score_inputs(table, p);
  table.outs(p.dout, "dout", Access::read);
  table.lse(p.softmax_lse, "softmax_lse", Access::read);
  table.delta(p.delta, Access::read);
}

}  // namespace

void for_each_pointer(const device::MaskTilesParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  table.lengths();
  table.add(p.classes.data, region_of(p.classes, Access::write));
}

void visit_tile_classes(const device::TileClasses<const std::uint8_t>& classes, const std::byte* block,
                        const RegionVisitor& visit) {
  visit(region_of(classes, Access::read),
        static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&classes.data) - block));
}

void for_each_table(std::span<const device::ScoreTable, device::kMostTables> tables, const std::byte* block,
                    const RegionVisitor& visit) {
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const device::ScoreTable& table = tables[i];
    Region region{.name = operations::attention::table_name(i),
                  .element_bytes = static_cast<std::size_t>(std::max(table.element_bytes, 1)),
                  .rank = static_cast<int>(std::size(table.sizes))};
    for (std::size_t d = 0; d < std::size(table.sizes); ++d) region.outer[d] = {table.sizes[d], table.strides[d]};
    visit(region, static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&table.data) - block));
  }
}

void for_each_pointer(const device::ForwardParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  score_inputs(table, p);
  const bool split = p.grid.num_splits > 1;
  const std::int64_t rows = split ? p.grid.num_splits * table.statistics() : 0;
  table.outs(p.out, "out", Access::write);
  table.lse(p.softmax_lse, "softmax_lse", Access::write);
  table.sink(p.sink, "sink", Access::read);
  table.workspace(p.out_accum, "out_accum", Access::write, rows * p.shape.head_dim_v);
  table.workspace(p.lse_accum, "lse_accum", Access::write, device::kLseNumbers * rows);
}

void for_each_pointer(const device::CombineParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  table.lengths();
  table.outs(p.out, "out", Access::write);
  table.lse(p.softmax_lse, "softmax_lse", Access::write);
  table.sink(p.sink, "sink", Access::read);
  table.workspace(p.out_accum, "out_accum", Access::read, p.num_splits * table.statistics() * p.shape.head_dim_v);
  table.workspace(p.lse_accum, "lse_accum", Access::read, device::kLseNumbers * p.num_splits * table.statistics());
}

void for_each_pointer(const device::BwdPreprocessParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  table.lengths();
  table.outs(p.out, "out", Access::read);
  table.outs(p.dout, "dout", Access::read);
  table.lse(p.dlse, "dlse", Access::read);
  table.delta(p.delta, Access::write);
  table.workspace(p.dq_accum, "dq_accum", Access::write, table.heads() * p.dq_accum_a_head);
}

void for_each_pointer(const device::BwdDqParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  gradient_inputs(table, p);
  table.queries(p.dq, "dq", Access::write);
}

void for_each_pointer(const device::BwdDkdvParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  gradient_inputs(table, p);
  table.keys(p.dk, "dk", Access::write);
  table.values(p.dv, "dv", Access::write);
}

void for_each_pointer(const device::BwdParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  gradient_inputs(table, p);
  table.keys(p.dk, "dk", Access::write);
  table.values(p.dv, "dv", Access::write);
  const std::int64_t parts = table.key_tiles() * p.grid.num_splits;
  table.workspace(p.dq_accum, "dq_accum", Access::add, table.heads() * p.dq_accum_a_head);
  table.workspace(p.dk_accum, "dk_accum", Access::write, parts * p.dk_accum_a_block);
  table.workspace(p.dv_accum, "dv_accum", Access::write, parts * p.dv_accum_a_block);
}

void for_each_pointer(const device::BwdConvertDqParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  table.lengths();
  table.queries(p.dq, "dq", Access::write);
  table.lse(p.softmax_lse, "softmax_lse", Access::read);
  table.workspace(p.dq_accum, "dq_accum", Access::read, table.heads() * p.dq_accum_a_head);
}

void for_each_pointer(const device::BwdConvertDkdvParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  table.lengths();
  table.keys(p.dk, "dk", Access::write);
  table.values(p.dv, "dv", Access::write);
  const std::int64_t parts = table.key_tiles() * p.num_splits;
  table.workspace(p.dk_accum, "dk_accum", Access::read, parts * p.dk_accum_a_block);
  table.workspace(p.dv_accum, "dv_accum", Access::read, parts * p.dv_accum_a_block);
}

void for_each_pointer(const device::BwdDbiasParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  gradient_inputs(table, p);
  table.bias(p.dbias, "dbias", Access::write, p.score.bias_type,
             {p.dbias_shape[0], p.dbias_shape[1], p.dbias_shape[2], p.dbias_shape[3]});
}

void for_each_pointer(const device::BwdDsinkParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  table.lengths();
  table.lse(p.softmax_lse, "softmax_lse", Access::read);
  table.sink(p.sink, "sink", Access::read);
  table.sink(p.dsink, "dsink", Access::write);
  table.delta(p.delta, Access::read);
}

void for_each_pointer(const device::ClearRestParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  table.lengths();
  table.outs(p.out, "out", Access::write);
  table.queries(p.dq, "dq", Access::write);
  table.keys(p.dk, "dk", Access::write);
  table.values(p.dv, "dv", Access::write);
  table.lse(p.softmax_lse, "softmax_lse", Access::write);
}

}  // namespace tilewise::backends::portable
