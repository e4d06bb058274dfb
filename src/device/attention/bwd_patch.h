// The gradients of a patch of scores, recomputed for what sums them up: dbias, and captured tensors.
#pragma once

#include "device/attention/bwd_scores.h"
#include "device/attention/config.h"
#include "device/attention/dropout.h"
#include "device/tile/contract.h"
#include "device/tile/loader.h"
#include "device/tile/mma.h"

namespace tilewise::device {

template <class Ops, auto C>
struct BwdPatchTiles {
  SharedTile<C.q_type, C.block_m(), C.head_dim> q;
  SharedTile<C.out_type, C.block_m(), C.head_dim_v> dout;
  SharedTile<C.k_type, C.block_n, C.head_dim> k;
  SharedTile<C.v_type, C.block_n, C.head_dim_v> v;
};

/// block_m queries and block_n keys at a time, of any head.
template <class Ops, auto C, class Params>
class BwdPatch {
  using Machine = typename Ops::Machine;
  static constexpr int kThreads = C.waves * Machine::kLanes;

 public:
  using Scores = Fragment<Ops, C.rows_per_wave, C.block_n>;
  using Tiles = BwdPatchTiles<Ops, C>;

  TILEWISE_INLINE BwdPatch(const Params& params, Tiles& tiles) : p_(params), tiles_(tiles) {
    lane_ = Machine::lane();
    wave_row_ = Machine::wave() * C.rows_per_wave;
    if constexpr (C.dropout) seed_ = dropout_seed(p_.score);
  }

  TILEWISE_INLINE int lane() const { return lane_; }
  TILEWISE_INLINE int wave_row() const { return wave_row_; }

  /// dS of the patch's scores, before softcap's factor; 0 of those that are not seen.
  TILEWISE_INLINE void gradients(Scores& S, const Sequence& s, int64_t batch, int64_t head, int32_t first_row,
                                 int32_t first_key) const {
    load(s, batch, head, first_row, first_key);
    Scores dP;
    S.clear();
    dP.clear();
    const auto& [q, dout, k, v] = tiles_;
    mma_ABt(S, own_rows(q), k);      // S = Q K^T
    mma_ABt(dP, own_rows(dout), v);  // dP = dO V^T
    S.for_each_tile([](auto& tile) { compute_by_here<Machine>(tile); });
    dP.for_each_tile([](auto& tile) { compute_by_here<Machine>(tile); });
    RowOf<C> rows[Scores::kSlots];
    QueryStatistics statistics[Scores::kSlots];
    TILEWISE_UNROLL
    for (int slot = 0; slot < Scores::kSlots; ++slot) {
      const int32_t i = first_row + wave_row_ + Scores::row_of_slot(lane_, slot);
      rows[slot] = row_score<C>(p_.score, p_.shape.num_heads_q, s, batch, head, i);
      statistics[slot] = load_statistics<Machine>(p_, s, batch, head, i);
    }
    if constexpr (C.dropout) {
      dP.for_each(Machine::not_hoisted(lane_), [&](int slot, int col, auto&& x) {
        const bool kept = keeps(p_.score, seed_, rows[slot].batch_head, rows[slot].query, first_key + col);
        x = kept ? x * p_.score.dropout_scale : 0.0f;
      });
    }
    const VisibleBand band = visible_band(p_.score, s);
    S.for_each_pair(dP, Machine::not_hoisted(lane_), [&](int slot, int col, auto&& score, auto&& dp) {
      const int32_t key = first_key + col;
      const Probability P =
          probability_of<Machine, C>(p_, rows[slot], band.seqlen_k, maximum(key, 0), score, statistics[slot].lse);
      // Where P is 0, of queries past the end too, dP may still be NaN.
      const bool visible =
          key >= 0 && sees_key<Machine, C>(p_, band, rows[slot], key) && !P.hidden && statistics[slot].lse != kInfinity;
      score = visible ? P.p * (dp - statistics[slot].delta) * P.mod_slope : 0.0f;
    });
    Machine::barrier();  // the patch was read by all
  }

 private:
  template <class Tile>
  TILEWISE_INLINE TilePart<Tile, true> own_rows(const Tile& tile) const {
    return {tile, wave_row_};
  }

  TILEWISE_INLINE void load(const Sequence& s, int64_t batch, int64_t head, int32_t first_row,
                            int32_t first_key) const {
    const int64_t head_k = head / (p_.shape.num_heads_q / p_.shape.num_heads_k);
    auto& [q, dout, k, v] = tiles_;
    load_tile(q, query_source<C.q_type>(p_.q, s, batch, head, p_.shape.head_dim), first_row);
    load_tile(dout, query_source<C.out_type>(p_.dout, s, batch, head, p_.shape.head_dim_v), first_row);
    load_tile(k, key_source<C.k_type>(p_.k, s, batch, head_k, p_.shape.head_dim), first_key);
    load_tile(v, key_source<C.v_type>(p_.v, s, batch, head_k, p_.shape.head_dim_v), first_key);
    Ops::finish_copies();
    Machine::barrier();
  }

  /// Rows outside the source repeat its first or last one: their P is masked away.
  template <class Tile>
  TILEWISE_INLINE void load_tile(Tile& tile, const RowSource<Tile::kElement>& source, int32_t first_row) const {
    constexpr int kRowChunks = Tile::kCols / kChunk;
    keep_order<Machine>();  // what passes through registers is one tile at a time, and so are addresses
    for (int unit = Machine::not_hoisted(Machine::thread()); unit < Tile::kRows * kRowChunks; unit += kThreads) {
      const int row = unit / kRowChunks, chunk = unit % kRowChunks;
      const int64_t from = maximum(0, minimum(first_row + row, source.rows - 1));
      copy_chunk<Ops, C>(tile.chunk(row, chunk), source.data + from * source.stride, chunk * kChunk, source.cols);
    }
  }

  const Params& p_;
  Tiles& tiles_;
  int lane_, wave_row_;
  DropoutSeed seed_;
};

}  // namespace tilewise::device
