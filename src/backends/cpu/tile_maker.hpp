// Forward tiles from a call: which rows, which keys, where the results go.
#pragma once

#include <cstdint>

#include "backends/cpu/merge_splits.hpp"
#include "backends/cpu/rows.hpp"

namespace tilewise::backends::cpu {

inline constexpr std::int64_t kRowCapacity = 256;  // no KernelSet takes more rows a tile

/// Query heads [first_head, first_head + num_heads) of one key head, which share a q_scale (heads_that_share_a_tile()),
/// queries [first_query, + num_queries).
struct TileRows {
  std::int64_t head_k, first_head, num_heads, first_query, num_queries;
};

/// One split of the keys, with partial results; none: all keys, straight to the outputs.
struct TileSplit {
  const Splits* splits = nullptr;
  void* workspace = nullptr;
  std::int64_t index = 0, keys = 0;  // keys 0: not split
};

class TileMaker {
 public:
  TileMaker(const device::AttentionParams& p, const ScoreParams& score, ElementIndex element, std::int64_t batch)
      : p_(p),
        score_(score),
        element_(element),
        batch_(batch),
        sequence_(device::sequence_of(p, batch)),
        maker_(p, element, batch, sequence_) {}

  [[nodiscard]] const device::Sequence& sequence() const { return sequence_; }

  /// A tile over `rows`, which hold num_heads * num_queries entries and outlive it.
  [[nodiscard]] ForwardTile tile(const TileRows& which, const TileSplit& split, RowInfo* rows) const;

  /// What functions leave of blocks of `keys` keys each, from the one of tile.key_begin on; in the thread's memory,
  /// null where there are no functions.
  [[nodiscard]] const device::Visibility* blocks(const TileRows& which, const ForwardTile& tile,
                                                 std::int64_t keys) const;

  /// Rows of the sequence outside its used part: out 0, lse -infinity.
  void clear_unused(std::int64_t first_head, std::int64_t num_heads) const;

 private:
  const device::AttentionParams& p_;
  const ScoreParams& score_;
  ElementIndex element_;
  std::int64_t batch_;
  device::Sequence sequence_;
  RowMaker maker_;
};

}  // namespace tilewise::backends::cpu
