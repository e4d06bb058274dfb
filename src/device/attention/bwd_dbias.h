// dbias: a block owns a patch of it and adds up what reaches it over the dimensions that the bias was
// broadcast along, in a fixed order, so that no atomics are needed and the sum is reproducible.
#pragma once

#include "device/attention/bwd_scores.h"
#include "device/attention/config.h"
#include "device/attention/dropout.h"
#include "device/attention/grid_place.h"
#include "device/tile/contract.h"
#include "device/tile/loader.h"
#include "device/tile/mma.h"

namespace tilewise::device {

template <class Ops, auto C>
struct BwdDbiasShared {
  struct Tiles {
    SharedTile<C.q_type, C.block_m(), C.head_dim> q;
    SharedTile<C.out_type, C.block_m(), C.head_dim_v> dout;
    SharedTile<C.k_type, C.block_n, C.head_dim> k;
    SharedTile<C.v_type, C.block_n, C.head_dim_v> v;
  };
  union {
    Tiles tiles;
    float dbias[C.block_m()][C.block_n];
  };
};

template <TileOps Ops, auto C>
class BwdDbias {
  using Machine = typename Ops::Machine;
  using Scores = Fragment<Ops, C.rows_per_wave, C.block_n>;
  static constexpr int kThreads = C.waves * Machine::kLanes;

 public:
  using Params = typename FunctionsOf<C>::template ParamsOf<BwdDbiasParams>;
  using Shared = BwdDbiasShared<Ops, C>;

  TILEWISE_INLINE static void run(const Params& params, Shared& shared) {
    BwdDbias kernel(params, shared);
    kernel.visit_sequences();
    kernel.finish();
  }

 private:
  /// Indices [begin, end) of a dimension that end in one index of dbias.
  struct Span {
    int64_t begin, end;
  };
  TILEWISE_INLINE static Span span_of(int64_t index, int64_t size, int64_t all) {
    return size > 1 ? Span{index, index + 1} : Span{0, all};
  }

  TILEWISE_INLINE BwdDbias(const Params& params, Shared& shared) : p_(params), shared_(shared) {
    lane_ = Machine::lane();
    wave_row_ = Machine::wave() * C.rows_per_wave;
    const int64_t* shape = p_.dbias_shape;
    all_queries_ = shape[2] <= 1;
    all_keys_ = shape[3] <= 1;
    int64_t block = Machine::block();
    const int64_t key_tiles = all_keys_ ? 1 : ceil_div<int64_t>(shape[3], C.block_n);
    const int64_t row_tiles = all_queries_ ? 1 : ceil_div<int64_t>(shape[2], C.block_m());
    key_tile_ = static_cast<int32_t>(block % key_tiles);
    block /= key_tiles;
    row_tile_ = static_cast<int32_t>(block % row_tiles);
    block /= row_tiles;
    head_ = block % shape[1];
    batch_ = block / shape[1];
    dbias_.clear();
    if constexpr (C.dropout) seed_ = dropout_seed(p_.score);
  }

  TILEWISE_INLINE void visit_sequences() {
    const Span batches = span_of(batch_, p_.dbias_shape[0], p_.shape.batch_size);
    const Span heads = span_of(head_, p_.dbias_shape[1], p_.shape.num_heads_q);
    for (int64_t b = batches.begin; b < batches.end; ++b) {
      const Sequence s = sequence_at<C>(p_.shape, b);
      if (s.seqlen_q == 0 || s.seqlen_k == 0) continue;
      for (int64_t h = heads.begin; h < heads.end; ++h) visit_head(s, b, h);
    }
  }

  TILEWISE_INLINE void visit_head(const Sequence& s, int64_t batch, int64_t head) {
    const auto seqlen_q = static_cast<int32_t>(s.seqlen_q), seqlen_k = static_cast<int32_t>(s.seqlen_k);
    const int32_t row_begin = all_queries_ ? 0 : row_tile_ * C.block_m();
    const int32_t row_end = all_queries_ ? seqlen_q : minimum(seqlen_q, row_begin + C.block_m());
    // Columns of dbias count from the sequence's first key in memory, keys from its first used one.
    const auto leftpad = static_cast<int32_t>(s.leftpad);
    const int32_t key_begin = all_keys_ ? 0 : key_tile_ * C.block_n - leftpad;
    const int32_t key_end = all_keys_ ? seqlen_k : minimum(seqlen_k, key_begin + C.block_n);
    for (int32_t first_row = row_begin; first_row < row_end; first_row += C.block_m()) {
      for (int32_t first_key = key_begin; first_key < key_end; first_key += C.block_n) {
        add_patch(s, batch, head, first_row, first_key);
      }
    }
  }

  TILEWISE_INLINE void add_patch(const Sequence& s, int64_t batch, int64_t head, int32_t first_row, int32_t first_key) {
    load_patch(s, batch, head, first_row, first_key);
    Scores S, dP;
    S.clear();
    dP.clear();
    const auto& [q, dout, k, v] = shared_.tiles;
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
    dbias_.for_each_pair(S, lane_, [](int, int, auto&& sum, auto&& x) { sum += x; });  // S holds dS now
    Machine::barrier();                                                                // the patch was read by all
  }

  template <class Tile>
  TILEWISE_INLINE TilePart<Tile, true> own_rows(const Tile& tile) const {
    return {tile, wave_row_};
  }

  TILEWISE_INLINE void load_patch(const Sequence& s, int64_t batch, int64_t head, int32_t first_row,
                                  int32_t first_key) {
    const int64_t head_k = head / (p_.shape.num_heads_q / p_.shape.num_heads_k);
    auto& [q, dout, k, v] = shared_.tiles;
    load_tile(q, query_source<C.q_type>(p_.q, s, batch, head, p_.shape.head_dim), first_row);
    load_tile(dout, query_source<C.out_type>(p_.dout, s, batch, head, p_.shape.head_dim_v), first_row);
    load_tile(k, key_source<C.k_type>(p_.k, s, batch, head_k, p_.shape.head_dim), first_key);
    load_tile(v, key_source<C.v_type>(p_.v, s, batch, head_k, p_.shape.head_dim_v), first_key);
    Ops::finish_copies();
    Machine::barrier();
  }

  /// Rows outside the source repeat its first or last one: their P is masked away.
  template <class Tile>
  TILEWISE_INLINE void load_tile(Tile& tile, const RowSource<Tile::kElement>& source, int32_t first_row) {
    constexpr int kRowChunks = Tile::kCols / kChunk;
    keep_order<Machine>();  // what passes through registers is one tile at a time, and so are addresses
    for (int unit = Machine::not_hoisted(Machine::thread()); unit < Tile::kRows * kRowChunks; unit += kThreads) {
      const int row = unit / kRowChunks, chunk = unit % kRowChunks;
      const int64_t from = maximum(0, minimum(first_row + row, source.rows - 1));
      copy_chunk<Ops, C>(tile.chunk(row, chunk), source.data + from * source.stride, chunk * kChunk, source.cols);
    }
  }

  /// Sums the patch along broadcast queries and keys, and writes it.
  TILEWISE_INLINE void finish() {
    Machine::barrier();
    dbias_.for_each(lane_, [&](int slot, int col, auto&& x) {
      Machine::store_shared(&shared_.dbias[wave_row_ + Scores::row_of_slot(lane_, slot)][col], static_cast<float>(x));
    });
    Machine::barrier();
    const int64_t rows = all_queries_ ? minimum<int64_t>(p_.dbias_shape[2], 1)
                                      : minimum<int64_t>(C.block_m(), p_.dbias_shape[2] - first_dbias_row());
    const int64_t cols = all_keys_ ? minimum<int64_t>(p_.dbias_shape[3], 1)
                                   : minimum<int64_t>(C.block_n, p_.dbias_shape[3] - first_dbias_col());
    for (int64_t unit = Machine::thread(); unit < rows * cols; unit += kThreads) {
      const auto row = static_cast<int>(unit / cols), col = static_cast<int>(unit % cols);
      const int row_end = all_queries_ ? C.block_m() : row + 1, col_end = all_keys_ ? C.block_n : col + 1;
      float sum = 0.0f;
      for (int i = row; i < row_end; ++i) {
        for (int j = col; j < col_end; ++j) sum += Machine::template load_shared<float>(&shared_.dbias[i][j]);
      }
      store(first_dbias_row() + row, first_dbias_col() + col, sum);
    }
  }

  TILEWISE_INLINE int64_t first_dbias_row() const { return static_cast<int64_t>(row_tile_) * C.block_m(); }
  TILEWISE_INLINE int64_t first_dbias_col() const { return static_cast<int64_t>(key_tile_) * C.block_n; }

  TILEWISE_INLINE void store(int64_t row, int64_t col, float value) const {
    const BiasTensor& to = p_.dbias;
    const int64_t place =
        batch_ * to.batch_stride + head_ * to.head_stride + row * to.query_stride + col * to.key_stride;
    if constexpr (C.bias_type == kBiasF32) {
      Machine::store_global(static_cast<float*>(to.data) + place, value);
    } else {
      constexpr int kElement = C.bias_type == kBiasBf16 ? kBf16 : kF16;
      Machine::store_global(static_cast<ElementBits<kElement>*>(to.data) + place,
                            static_cast<ElementBits<kElement>>(Machine::template pack<kElement>(value, 0.0f)));
    }
  }

  const Params& p_;
  Shared& shared_;
  int lane_, wave_row_;
  bool all_queries_, all_keys_;
  int32_t key_tile_, row_tile_;
  int64_t head_, batch_;
  DropoutSeed seed_;
  Scores dbias_;
};

}  // namespace tilewise::device
