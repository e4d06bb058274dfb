// Which rows of blocks a call needs; see block_states.hpp.
#include "backends/cpu/kv_cache/block_states.hpp"

#include <algorithm>
#include <cstring>

#include "operations/kv_cache/sequence.hpp"

namespace tilewise::backends::cpu {

using operations::BlockGrid;
using operations::kv_cache::KvCacheParams, operations::kv_cache::Sequence;

/// The states, and whether a row of blocks is written: sequences that share a mask may stand in the same one.
std::size_t CacheBlockStates::bytes() const {
  const BlockGrid grid = block_grid(scores_);
  return static_cast<std::size_t>(grid.blocks() + grid.batch * grid.rows);
}

void CacheBlockStates::write(const KvCacheParams& call, std::uint8_t* states) const {
  const BlockGrid grid = block_grid(scores_);
  if (grid.blocks() == 0) return;
  std::uint8_t* const written = states + grid.blocks();
  std::memset(written, 0, static_cast<std::size_t>(grid.batch * grid.rows));
  for (std::int64_t b = 0; b < call.batch_size; ++b) {
    const Sequence s = sequence_of(call, b);
    if (s.absent || s.seqlen_q <= 0 || s.seqlen_k() <= 0) continue;
    const std::int64_t of = scores_.mask.batch ? b : 0, last = (s.seqlen_k() - 1) / scores_.mask.rows;
    for (std::int64_t row = std::max<std::int64_t>(s.diagonal(), 0) / scores_.mask.rows; row <= last; ++row) {
      if (written[of * grid.rows + row] != 0) continue;
      written[of * grid.rows + row] = 1;
      for (std::int64_t h = 0; h < grid.heads; ++h)
        write_block_row(call.block_mask, scores_, of, h, row,
                        states + ((of * grid.heads + h) * grid.rows + row) * grid.columns);
    }
  }
}

}  // namespace tilewise::backends::cpu
