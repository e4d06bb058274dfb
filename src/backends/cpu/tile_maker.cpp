// Forward tiles from a call; see tile_maker.hpp.
#include "backends/cpu/tile_maker.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "backends/cpu/score_functions.hpp"
#include "core/ceil_div.hpp"
#include "core/parallel.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::cpu {

ForwardTile TileMaker::tile(const TileRows& which, const TileSplit& split, RowInfo* rows) const {
  const std::size_t size = element_size(element_);
  ForwardTile tile{};
  tile.rows = rows;
  tile.num_rows = static_cast<std::int32_t>(which.num_heads * which.num_queries);
  tile.score = score_;
  tile.score.functions.memory = function_memory(score_.functions);
  tile.score.softmax_scale *= double{p_.q_scale.of(batch_, which.first_head)} * p_.k_scale.of(batch_, which.head_k);
  tile.value_scale = p_.v_scale.of(batch_, which.head_k);
  tile.abandoned = &core::abandoned;
  tile.head_dim = static_cast<std::int32_t>(p_.head_dim);
  tile.head_dim_v = static_cast<std::int32_t>(p_.head_dim_v);
  tile.seqlen_k = static_cast<std::int32_t>(sequence_.seqlen_k);
  tile.k = row_address(p_.k, batch_, sequence_.k_row, which.head_k, size);
  tile.v = row_address(p_.v, batch_, sequence_.k_row, which.head_k, size);
  tile.k_stride = p_.k.seq_stride;
  tile.v_stride = p_.v.seq_stride;
  tile.key_begin = std::numeric_limits<std::int32_t>::max();
  const std::span all(rows, static_cast<std::size_t>(tile.num_rows));
  for (std::int64_t h = 0; h < which.num_heads; ++h) {
    for (std::int64_t n = 0; n < which.num_queries; ++n) {
      const std::int64_t i = which.first_query + n, head = which.first_head + h;
      RowInfo& row = *rows++;
      row = maker_.row(i, head);
      row.out = mutable_row_address(p_.out, batch_, sequence_.q_row + i, head, size);
      row.lse = lse_address(p_.softmax_lse, sequence_, batch_, i, head, element_);
      if (split.splits) row.partial = split.splits->row(split.workspace, batch_, head, i, split.index);
    }
  }
  if (score_.functions.blocks != nullptr) {
    narrow_rows(*score_.functions.blocks,
                {batch_, which.first_head, which.first_head + which.num_heads, which.first_query,
                 which.first_query + which.num_queries, 0, sequence_.seqlen_k},
                all.data(), which.num_queries);
  }
  for (const RowInfo& row : all) {
    if (row.key_begin >= row.key_end) continue;
    tile.key_begin = std::min(tile.key_begin, row.key_begin);
    tile.key_end = std::max(tile.key_end, row.key_end);
  }
  if (split.keys > 0) {
    const std::int64_t begin = split.index * split.keys;
    tile.key_begin = static_cast<std::int32_t>(std::max<std::int64_t>(tile.key_begin, begin));
    tile.key_end = static_cast<std::int32_t>(std::min<std::int64_t>(tile.key_end, begin + split.keys));
  }
  if (tile.key_begin > tile.key_end) tile.key_begin = tile.key_end = 0;
  return tile;
}

const device::Visibility* TileMaker::blocks(const TileRows& which, const ForwardTile& tile, std::int64_t keys) const {
  if (score_.functions.blocks == nullptr || tile.key_begin >= tile.key_end) return nullptr;
  const std::int64_t first = tile.key_begin / keys * keys;
  auto* results = static_cast<device::Visibility*>(
      thread_memory(ThreadMemory::blocks, static_cast<std::size_t>(core::ceil_div(tile.key_end - first, keys))));
  score_.functions.blocks->of_each({batch_, which.first_head, which.first_head + which.num_heads, which.first_query,
                                    which.first_query + which.num_queries, first, tile.key_end},
                                   keys, results);
  return results;
}

void TileMaker::clear_unused(std::int64_t first_head, std::int64_t num_heads) const {
  const std::size_t size = element_size(element_);
  for (std::int64_t h = first_head; h < first_head + num_heads; ++h) {
    for (std::int64_t i = sequence_.seqlen_q; i < sequence_.all_q; ++i) {
      void* out = mutable_row_address(p_.out, batch_, sequence_.q_row + i, h, size);
      std::memset(out, 0, static_cast<std::size_t>(p_.head_dim_v) * size);
      if (void* lse = lse_address(p_.softmax_lse, sequence_, batch_, i, h, element_))
        operations::store_element(real_of(element_), lse, 0, -std::numeric_limits<double>::infinity());
    }
  }
}

}  // namespace tilewise::backends::cpu
