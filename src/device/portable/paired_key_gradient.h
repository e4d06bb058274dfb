// dk and dv by pairs of waves that share 32 keys: one multiplies keys and sums dk, the other values and
// dv, and they hand each other weights and products. Each has one accumulator, so twice the rows fit
// its registers, and each tile is read from shared memory half as often as when a wave has both.
#pragma once

#include "device/portable/dropout.h"
#include "device/portable/gradients.h"
#include "device/portable/key_block.h"
#include "device/portable/loader.h"
#include "device/portable/store_rows.h"

namespace tilewise::device {

template <class Ops, KernelConfig C>
struct PairedKeyGradientShared {
  static_assert(C.head_dim == C.head_dim_v, "both waves of a pair have accumulators of one shape");
  static_assert(!C.softcap, "softcap's derivative needs the scores, which are gone when the products arrive");
  static constexpr int kPairs = C.waves / 2, kBlockRows = kPairs * C.rows_per_wave;
  static constexpr int kLanes = Ops::Machine::kLanes;
  static constexpr int kValues = C.rows_per_wave * C.tile_cols / kLanes;  // of a lane's fragment
  using OwnTile = SharedTile<kBlockRows, C.head_dim>;
  using QueryTile = StreamTile<C.tile_cols, C.head_dim, kForBoth, Ops::kTransposedCopies>;
  struct Stage {
    QueryTile tiles[2];  // queries, and the gradients of their outputs
    QueryStatistics statistics[C.tile_cols];
  };
  /// What the waves of a pair hand over, register by register: their lanes hold the same elements.
  struct Exchange {
    Chunk products[kValues / 4][kLanes];  // dout.v in fp32
    Chunk weights[kValues / 8][kLanes];   // rounded, as accumulate()'s operand
  };
  struct Streams {
    OwnTile own[2];  // keys, values
    Stage stage[C.stages];
    Exchange exchange[kPairs];
  };
  union {
    Streams streams;
    OutTile<typename Ops::Layout, kBlockRows, C.head_dim> out[2];
  };
};

template <class Ops, KernelConfig C>
class PairedKeyGradientKernel {
  using Machine = typename Ops::Machine;
  using Shared = PairedKeyGradientShared<Ops, C>;
  using Scores = typename Ops::template Accumulators<C.rows_per_wave, C.tile_cols>;
  using Sums = typename Ops::template Accumulators<C.rows_per_wave, C.head_dim>;
  using Operand = typename Ops::template RowOperand<C.rows_per_wave, C.tile_cols>;
  using Block = KeyBlock<C>;
  static constexpr int kThreads = C.waves * Machine::kLanes;
  static_assert(kThreads >= C.tile_cols, "a thread brings the statistics of one query");

 public:
  TILEWISE_INLINE static void run(const KernelParams& params, Shared& shared) {
    const GridPlace place = grid_place<Machine>(params.grid);
    const Sequence sequence = sequence_at<C>(params.call, place.batch);
    if (static_cast<int64_t>(place.tile) * Shared::kBlockRows >= sequence.all_k) return;
    PairedKeyGradientKernel kernel(params, shared, Block(params.call, sequence, place, Shared::kBlockRows));
    kernel.visit_queries();
    kernel.finish();
  }

 private:
  TILEWISE_INLINE PairedKeyGradientKernel(const KernelParams& params, Shared& shared, const Block& block)
      : p_(params.call), grid_(params.grid), shared_(shared), block_(block) {
    lane_ = Machine::lane();
    const int wave = Machine::wave();
    pair_ = wave % Shared::kPairs;
    side_ = wave / Shared::kPairs;
    wave_row_ = pair_ * C.rows_per_wave;
    sums_.clear();
    if constexpr (C.dropout) seed_ = dropout_seed(p_);
  }

  TILEWISE_INLINE void visit_queries() {
    const typename Block::Tiles t = block_.tiles(Shared::kBlockRows);
    const int32_t steps = t.count() * block_.group;
    if (steps == 0) return;
    load_own(shared_.streams.own[0], p_.k, p_.head_dim);
    load_own(shared_.streams.own[1], p_.v, p_.head_dim_v);
    QueryPosition at = block_.first_position(t);
    start(at);
    while (at.step < steps) {
      const QueryPosition next = at.next(t);
      visit(at, next, next.step < steps, C.ranged && !t.is_full(at.tile));
      at = next;
    }
  }

  TILEWISE_INLINE void load_own(typename Shared::OwnTile& tile, const Tensor4& from, int64_t cols) {
    constexpr int kRowChunks = C.head_dim / kChunk;
    for (int unit = Machine::thread(); unit < Shared::kBlockRows * kRowChunks; unit += kThreads) {
      const int row = unit / kRowChunks, chunk = unit % kRowChunks;
      copy_chunk<Ops, C>(tile.chunk(row, chunk), block_.address_of_key(from, row), chunk * kChunk,
                         static_cast<int>(cols));
    }
  }

  TILEWISE_INLINE typename Shared::Stage& stage(int32_t step) { return shared_.streams.stage[step % C.stages]; }

  TILEWISE_INLINE void start(const QueryPosition& at) {
    const int32_t head = at.head, first = at.tile * C.tile_cols;
    query_loader_.start(stage(at.step).tiles[0], block_.query_source(p_.q, head, p_.head_dim), first);
    dout_loader_.start(stage(at.step).tiles[1], block_.query_source(p_.dout, head, p_.head_dim_v), first);
    const int thread = Machine::thread();
    if (thread < C.tile_cols) {
      statistics_ = load_statistics<Machine>(p_, grid_, block_.sequence, block_.place.batch, head, first + thread);
    }
  }

  TILEWISE_INLINE void finish_stage(int32_t step) {
    typename Shared::Stage& current = stage(step);
    if constexpr (C.stages == 1) Machine::barrier();  // the last tile was read by all
    Ops::finish_copies();
    query_loader_.finish(current.tiles[0]);
    dout_loader_.finish(current.tiles[1]);
    const int thread = Machine::thread();
    if (thread < C.tile_cols) Machine::store_shared(&current.statistics[thread], statistics_);
    Machine::barrier();
  }

  TILEWISE_INLINE void visit(const QueryPosition& at, const QueryPosition& next, bool more, bool masked) {
    finish_stage(at.step);
    if (more) start(next);
    const typename Shared::Stage& current = stage(at.step);
    const int32_t head = at.head, first_query = at.tile * C.tile_cols;
    typename Shared::Exchange& exchange = shared_.streams.exchange[pair_];

    Scores scores;
    scores.clear();
    Ops::template multiply<C.element>(scores, shared_.streams.own[side_], wave_row_,
                                      current.tiles[side_].for_multiply());
    Kept kept;
    Operand operand;
    if (side_ == 0) {
      weigh(scores, kept, current, head, first_query, masked);
      send_weights(exchange, scores, kept);
    } else {
      send_products(exchange, scores);
    }
    Machine::barrier();
    if (side_ == 0) {
      score_gradients(scores, kept, exchange, current);
      operand = Ops::template to_operand<C.element>(scores);
    } else {
      receive_weights(exchange, operand);
    }
    Ops::template accumulate<C.element>(sums_, operand, current.tiles[side_].for_accumulate());
  }

  /// Which weights survive dropout, a bit for each element of the lane.
  struct Kept {
    uint32_t bits[ceil_div(Shared::kValues, 32)];
  };

  /// Two neighbours come with one load, which lanes that hold both columns share.
  struct alignas(16) TwoQueries {
    QueryStatistics even, odd;
  };
  TILEWISE_INLINE static QueryStatistics statistics_of(const typename Shared::Stage& stage, int col) {
    const auto two = Machine::template load_shared<TwoQueries>(&stage.statistics[col & ~1]);
    return col & 1 ? two.odd : two.even;
  }

  /// Scores become weights before dropout.
  TILEWISE_INLINE void weigh(Scores& scores, Kept& kept, const typename Shared::Stage& current, int32_t head,
                             int32_t first_query, bool masked) {
    const RowScore of_head = row_score<C>(p_, block_.sequence, block_.place.batch, head, 0);
    if constexpr (C.dropout) {
      TILEWISE_UNROLL
      for (uint32_t& bits : kept.bits) bits = 0;
    }
    int element = 0;
    scores.for_each(lane_, [&](int slot, int col, auto&& x) {
      const int32_t key = block_.first_key + wave_row_ + Scores::row_of_slot(lane_, slot), query = first_query + col;
      const RowScore row = block_.query_score(of_head, query);
      float slope = 1.0f;
      x = weight_of<Machine, C>(p_, row, block_.band.seqlen_k, maximum(key, 0), x, statistics_of(current, col).lse,
                                slope);
      if constexpr (C.dropout) {
        const bool keep = keeps(p_, seed_, of_head.batch_head, query, key);
        kept.bits[element / 32] |= static_cast<uint32_t>(keep) << (element % 32);
      }
      ++element;
    });
    if (masked) hide(scores, first_query);
  }

  TILEWISE_INLINE void hide(Scores& scores, int32_t first_query) {
    const int lane = Machine::not_hoisted(lane_);
    scores.for_each(lane, [&](int slot, int col, auto&& x) {
      const int32_t key = block_.first_key + wave_row_ + Scores::row_of_slot(lane, slot);
      x = block_.band.holds(key - (first_query + col + block_.diagonal)) ? x : 0.0f;
    });
  }

  TILEWISE_INLINE bool is_kept(const Kept& kept, int element) const {
    return (kept.bits[element / 32] >> (element % 32) & 1u) != 0;
  }

  TILEWISE_INLINE void send_weights(typename Shared::Exchange& exchange, const Scores& weights, const Kept& kept) {
    Operand operand;
    if constexpr (C.dropout) {
      Scores dropped = weights;
      int element = 0;
      dropped.for_each(0, [&](int, int, auto&& x) { x = is_kept(kept, element++) ? x * p_.dropout_scale : 0.0f; });
      operand = Ops::template to_operand<C.element>(dropped);
    } else {
      operand = Ops::template to_operand<C.element>(weights);
    }
    int chunk = 0;
    Ops::for_each_chunk(operand, [&](Chunk& x) { Machine::store_shared(&exchange.weights[chunk++][lane_], x); });
  }

  TILEWISE_INLINE void receive_weights(const typename Shared::Exchange& exchange, Operand& operand) {
    int chunk = 0;
    Ops::for_each_chunk(operand,
                        [&](Chunk& x) { x = Machine::template load_shared<Chunk>(&exchange.weights[chunk++][lane_]); });
  }

  TILEWISE_INLINE void send_products(typename Shared::Exchange& exchange, const Scores& products) {
    TILEWISE_UNROLL
    for (int i = 0; i < Shared::kValues / 4; ++i) {
      Chunk chunk;
      TILEWISE_UNROLL
      for (int j = 0; j < 4; ++j) chunk.word[j] = __builtin_bit_cast(uint32_t, value_of(products, 4 * i + j));
      Machine::store_shared(&exchange.products[i][lane_], chunk);
    }
  }

  /// Element `index` of a lane's fragment, in for_each()'s order.
  TILEWISE_INLINE static float value_of(const Scores& scores, int index) {
    constexpr int kRegisters = Scores::Layout::kRegisters;
    return scores
        .tile[index / kRegisters / Scores::kColTiles][index / kRegisters % Scores::kColTiles][index % kRegisters];
  }

  /// Weights become score gradients.
  TILEWISE_INLINE void score_gradients(Scores& weights, const Kept& kept, const typename Shared::Exchange& exchange,
                                       const typename Shared::Stage& current) {
    int element = 0;
    Chunk products;
    weights.for_each(lane_, [&](int, int col, auto&& x) {
      if (element % 4 == 0) products = Machine::template load_shared<Chunk>(&exchange.products[element / 4][lane_]);
      float product = __builtin_bit_cast(float, products.word[element % 4]);
      if constexpr (C.dropout) product = is_kept(kept, element) ? product * p_.dropout_scale : 0.0f;
      x = x * (product - statistics_of(current, col).delta);
      ++element;
    });
  }

  TILEWISE_INLINE void finish() {
    const Tensor4& to = side_ == 0 ? p_.dk : p_.dv;
    typename Sums::PerRow factor;
    TILEWISE_UNROLL
    for (int slot = 0; slot < Sums::kSlots; ++slot) {
      const bool used = block_.used(wave_row_ + Sums::row_of_slot(lane_, slot));
      factor[slot] = !used ? 0.0f : side_ == 0 ? p_.softmax_scale : 1.0f;
    }
    sums_.scale_or_clear_rows(factor);
    write_rows<Ops, C>(shared_.out[side_], sums_, wave_row_, side_ == 0 ? p_.head_dim : p_.head_dim_v,
                       [&](int row) -> uint16_t* { return to.data ? block_.address_of_gradient(to, row) : nullptr; });
  }

  const AttentionParams& p_;
  const GridParams& grid_;
  Shared& shared_;
  Block block_;
  int lane_, pair_, side_, wave_row_;
  TileLoader<Ops, C, typename Shared::QueryTile> query_loader_, dout_loader_;
  QueryStatistics statistics_;
  DropoutSeed seed_;
  Sums sums_;
};

}  // namespace tilewise::device
