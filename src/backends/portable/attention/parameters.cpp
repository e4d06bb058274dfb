// What each pointer of a parameter block points to: name, access and extent.
#include "backends/portable/attention/parameters.hpp"

#include <array>

#include "backends/portable/attention/pointer_table.hpp"
#include "operations/attention/score_functions.hpp"
#include "operations/block_mask.hpp"

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

/// What those of the backward pass read beside.
template <typename Params>
void gradient_inputs(const PointerTable<Params>& table, const Params& p) {
  score_inputs(table, p);
  table.outs(p.dout, "dout", Access::read);
  table.lse(p.softmax_lse, "softmax_lse", Access::read);
  table.delta(p.delta, Access::read);
}

/// Of each key's row.
template <typename Params>
void selected_sums(const PointerTable<Params>& table, const Params& p, Access access) {
  const std::int64_t of_heads = p.accum_rows * p.shape.num_heads_k;
  table.workspace(p.dk_accum, kSelectedDk, access, of_heads * p.dk_accum_a_row);
  table.workspace(p.dv_accum, kSelectedDv, access, of_heads * p.dv_accum_a_row);
}

/// Of the workspace that the launches of one table share.
std::string_view sums_name(std::int32_t table) {
  constexpr std::array<std::string_view, device::kMostTables> kNames{"dtable0_sums", "dtable1_sums", "dtable2_sums",
                                                                     "dtable3_sums", "dtable4_sums", "dtable5_sums",
                                                                     "dtable6_sums", "dtable7_sums"};
  return kNames[static_cast<std::size_t>(table)];
}

Region region_of_states(std::int64_t bytes, Access access) {
  Region region{.name = kBlockStatesPart, .workspace = true};
  region.access = access;
  region.row = bytes;
  region.one_writer = false;  // a list may have a block twice
  return region;
}

}  // namespace

Region region_of_tiles(std::int32_t rows, std::int64_t bytes, Access access) {
  constexpr std::array<std::string_view, 4> kNames{"query_tile_classes", "key_tile_classes", "key_tile_lists",
                                                   "query_tile_ranges"};
  Region region{.name = kNames.at(static_cast<std::size_t>(rows)), .workspace = true};
  region.access = access;
  region.row = bytes;
  return region;
}

void for_each_pointer(const device::BlockStatesParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  const auto name = [&p](std::size_t beyond) {
    return operations::block_mask_name(static_cast<std::size_t>(p.tensor) + beyond);
  };
  const auto& counts = p.count_strides;
  const auto& indices = p.index_strides;
  table.add(p.counts, {.name = name(0),
                       .element_bytes = sizeof(std::int32_t),
                       .outer = {{{p.batch, counts[0]}, {p.heads, counts[1]}, {p.rows, counts[2]}}},
                       .rank = 3});
  table.add(p.indices,
            {.name = name(1),
             .element_bytes = sizeof(std::int32_t),
             .outer = {{{p.batch, indices[0]}, {p.heads, indices[1]}, {p.rows, indices[2]}, {p.columns, indices[3]}}},
             .rank = 4});
  table.add(p.states, region_of_states(std::int64_t{p.batch} * p.heads * p.rows * p.columns, Access::write));
}

void for_each_pointer(const device::MaskTilesParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  table.lengths();
  table.add(p.classes.data, region_of_tiles(p.classes.rows, p.classes.bytes, Access::write));
}

void visit_tile_classes(const device::TileClasses<const std::uint8_t>& classes, const std::byte* block,
                        const RegionVisitor& visit) {
  visit(region_of_tiles(classes.rows, classes.bytes, Access::read),
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
    if (table.of_blocks != 0) {
      std::int64_t bytes = 1;
      for (const std::int32_t size : table.sizes) bytes *= size;
      region = region_of_states(bytes, Access::read);
    }
    visit(region, static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&table.data) - block));
  }
}

void for_each_pointer(const device::ForwardParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  score_inputs(table, p);
  table.selected(p.key_indices);
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
  table.selected(p.key_indices);
}

void for_each_pointer(const device::BwdDkdvParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  gradient_inputs(table, p);
  table.keys(p.dk, "dk", Access::write);
  table.values(p.dv, "dv", Access::write);
  table.selected(p.key_indices);
  selected_sums(table, p, Access::add);
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

void for_each_pointer(const device::BwdConvertSelectedParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  table.lengths();
  table.keys(p.dk, "dk", Access::write);
  table.values(p.dv, "dv", Access::write);
  selected_sums(table, p, Access::read);
}

void for_each_pointer(const device::BwdDbiasParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  gradient_inputs(table, p);
  table.bias(p.dbias, "dbias", Access::write, p.score.bias_type,
             {p.dbias_shape[0], p.dbias_shape[1], p.dbias_shape[2], p.dbias_shape[3]});
}

void for_each_pointer(const device::BwdDtableParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  gradient_inputs(table, p);
  table.workspace(p.sums, sums_name(p.table), Access::add, p.sums_size);
}

void for_each_pointer(const device::BwdTableSumsParams& p, const RegionVisitor& visit) {
  const PointerTable table(p, visit);
  table.lengths();
  const bool stores = p.element_bytes > 0;
  table.workspace(p.sums, sums_name(p.table), stores ? Access::read : Access::write, p.sums_size);
  Region gradient{.name = operations::attention::dtable_name(static_cast<std::size_t>(p.table)),
                  .access = Access::write,
                  .element_bytes = static_cast<std::size_t>(std::max(p.element_bytes, 1)),
                  .rank = static_cast<int>(std::size(p.sizes))};
  for (std::size_t d = 0; d < std::size(p.sizes); ++d) gradient.outer[d] = {stores ? p.sizes[d] : 0, p.strides[d]};
  table.add(p.to, gradient);
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
