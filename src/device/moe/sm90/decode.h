// A whole expert layer in one launch, for few rows. Weights are M of every product and an expert's rows are N, so that
// a tile streams 64 rows of weights or more for 8 to 128 rows of x. All blocks do tiles of gate and up first and tiles
// of down then; weights of these are on their way while h is not yet there. Parts are summed last, in the same launch.
// Quantised weights are widened in registers, see quantised.h.
#pragma once

#include "device/moe/sm90/combine.h"
#include "device/moe/sm90/config.h"
#include "device/moe/sm90/decode_store.h"
#include "device/moe/sm90/ordered_rows.h"
#include "device/moe/sm90/pairs.h"
#include "device/moe/sm90/quantised.h"
#include "device/sm90/grid_counters.h"
#include "device/sm90/load.h"
#include "device/sm90/roles.h"

namespace tilewise::device {

template <Sm90TileOps Ops, MoeDecodeConfig C>
class Sm90MoeDecode {
  using Machine = typename Ops::Machine;
  template <int kColumns>
  using RowsTile = SwizzledTile<kColumns, C.depth>;
  using Quantised = QuantisedProduct<Machine, C>;
  struct Stage {
    Choose<C.quantised(), typename Quantised::Weights, SwizzledTile<C.block_m(), C.depth>> weights;
    RowsTile<C.block_n> rows;
  };
  using Pipe = Pipeline<Machine, C.stages>;
  using Copies = Choose<C.quantised(), OrderedRowCopies<Machine, C, Pipe>, RowCopies<Pipe, kRowWarps>>;
  using Pairs = Choose<C.held_ids != 0, HeldPairs<Machine, maximum(C.held_ids, 1)>,
                       ReadPairs<Machine, C.held_experts, C.block_n, C.block_n>>;
  using Tile = MoeDecodeTile;
  struct NoProduct {
    TILEWISE_INLINE explicit NoProduct(NoShared&) {}
  };
  static constexpr int kConsumerThreads = C.consumers * kWarpgroupThreads, kConsumersMeet = 1;
  static constexpr int kTold = 4;
  // Producers look ids up, and consumers hold no large products.
  static constexpr RoleRegisters kRegisters = C.consumers == 1   ? RoleRegisters{128, 248}
                                              : C.consumers == 2 ? RoleRegisters{96, 200}
                                                                 : RoleRegisters{80, 144};
  // Of a row in a stage, 16 bytes each; the rows that a warp copies at once, and how often.
  static constexpr int kPieces = C.depth / 8, kRowsAtOnce = 32 / kPieces, kCopies = C.block_n / kRowsAtOnce;
  static constexpr int kHeldColumns = ceil_div(C.block_n, 32);  // of a tile's, that a lane looks up
  static_assert(C.block_n % 8 == 0 && (C.block_n & (C.block_n - 1)) == 0);
  static_assert(!C.quantised() || C.weight_columns() == kChunkRowBytes);

 public:
  using Params = MoeDecodeParams;
  struct Shared {
    Stage stage[C.stages];
    Pipe pipe;
    Barrier<Machine> opened;          // the counters, to this block's warps
    Ring<Machine, kTold> tiles_done;  // of gate and up, to the warp that tells other blocks
    Choose<C.quantised(), typename Quantised::Shared, NoShared> scales;
  };

  TILEWISE_INLINE static void run(const MoeDecodeParams& p, Shared& shared) {
    if (Machine::thread() == 0) {
      shared.pipe.init(4 * C.consumers, 1 + kWarpArrivals);
      shared.opened.init(1);
      shared.tiles_done.init(4 * C.consumers, 1);
      if constexpr (C.quantised()) shared.scales.ring.init(kWarpArrivals, 4 * C.consumers);
      Machine::publish_barriers();
      Machine::prefetch_map(p.gate_up_map), Machine::prefetch_map(p.down_map);
    }
    if constexpr (C.quantised()) {
      // Nobody copies rows that a tile has not, and the matrix unit reads them.
      for (Stage& stage : shared.stage) {
        for (int32_t at = 16 * Machine::thread(); at < stage.rows.kBytes; at += 16 * C.threads()) {
          Machine::store_shared(reinterpret_cast<Chunk*>(stage.rows.bytes + at), Chunk{});
        }
      }
      Machine::fence_shared_writes();
    }
    meet_cluster<Machine, 1>();
    let_next_step_begin<Machine>();
    wait_for_step_before<Machine>();
    run_roles<Machine, C.consumers, kRegisters>(
        [&](int warp) TILEWISE_INLINE_LAMBDA {
          if (warp == 0) Role(p, shared).load_weights();
          if (warp == 1) Role(p, shared).tell_others();
          if (warp > 1) Role(p, shared).load_rows(warp - 2);
        },
        [&](int32_t warpgroup) TILEWISE_INLINE_LAMBDA { Role(p, shared).consume(warpgroup); });
  }

 private:
  /// What a warp does, all of whose lanes go through the same tiles.
  class Role {
   public:
    TILEWISE_INLINE Role(const MoeDecodeParams& p, Shared& shared)
        : p_(p),
          shared_(shared),
          pairs_(p),
          tiles_up_(ceil_div(p.shape.intermediate, C.block_j())),
          tiles_down_(ceil_div(p.shape.hidden, C.block_m())) {}

    /// Of weights a lane loads all, of their scales each has some. They wait for nothing but room.
    TILEWISE_INLINE void load_weights() {
      ProducerPlace<Pipe> place(shared_.pipe);
      RingPlace<C.scale_windows> scales;
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        const int32_t steps = steps_of(tile);
        if constexpr (C.quantised()) {
          TILEWISE_NO_UNROLL
          for (int32_t first = 0; first < steps; first += ScaleWindow<C>::kStages, scales.advance()) {
            scales.wait_empty(shared_.scales.ring);
            scales_of(tile).load(shared_.scales.window[scales.stage], first, shared_.scales.ring.full[scales.stage]);
            if (Machine::lane() == 0) load_steps(tile, first, minimum(steps, first + ScaleWindow<C>::kStages), place);
            Machine::wave_sync();
          }
        } else {
          if (Machine::lane() == 0) load_steps(tile, 0, steps, place);
          Machine::wave_sync();
        }
      });
    }

    /// Tells other blocks of h's tiles. Counters take 7 us to open and a release 1 us or more while weights stream,
    /// which no consumer waits for.
    TILEWISE_INLINE void tell_others() {
      const GridCounters<Machine> counters(p_.counters);
      RingPlace<kTold> place;
      if (Machine::lane() == 0) counters.open(pairs_.num_groups());
      arrive_as_warp(shared_.opened);
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        if (tile.down || !tile.last) return;
        place.wait_full(shared_.tiles_done);
        if (Machine::lane() == 0) counters.arrive(tile.number);
        arrive_as_warp(shared_.tiles_done.empty[place.stage]);
        place.advance();
      });
    }

    /// The stages' rows, of two warps in turn.
    TILEWISE_INLINE void load_rows(int32_t turn) {
      const GridCounters<Machine> counters(p_.counters);
      Copies copies(shared_.pipe, turn);
      [[maybe_unused]] const auto rows_of = [&](uint32_t stage) TILEWISE_INLINE_LAMBDA->RowsTile<C.block_n>& {
        return shared_.stage[stage].rows;
      };
      int32_t ready = kNobody;  // the group whose h is known to be there
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        int32_t row[C.quantised() ? kHeldColumns : kCopies];
        if constexpr (C.quantised()) {
          look_up(row, tile);
          if (!tile.down) rows_of_pairs(row);
          // Their own h may be what others wait for.
          if (tile.down && ready == kNobody) copies.hand_over_all(rows_of);
        } else {
          rows_to_copy(row, tile);
        }
        if (tile.down && tile.number != ready) {
          if (ready == kNobody) shared_.opened.wait(0);
          counters.wait(tile.number, tiles_up_), ready = tile.number;
        }
        const int32_t steps = steps_of(tile), columns = columns_of(tile);
        const RowTensor& from = tile.down ? p_.h : p_.x;
        const int32_t depth = tile.down ? p_.shape.intermediate : p_.shape.hidden;
        TILEWISE_NO_UNROLL
        for (int32_t step = copies.skip_to_own(steps); step < steps; step += kRowWarps) {
          auto& to = shared_.stage[copies.begin()].rows;
          if constexpr (C.quantised()) {
            load_quantised_rows<Machine, C>(to, row, tile.group.count, from, step * C.depth, depth);
            copies.leave(tile.group.count, rows_of);
          } else {
            load_step(row, columns, to, from, step * C.depth, depth);
            copies.commit();
          }
        }
      });
      if constexpr (C.quantised()) copies.hand_over_all(rows_of);
    }

    TILEWISE_INLINE void consume(int32_t warpgroup) {
      ConsumerPlace<Pipe> place(shared_.pipe);
      Choose<C.quantised(), Quantised, NoProduct> product(shared_.scales);
      RingPlace<kTold> told;
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        for_columns_of(tile, [&](auto columns) TILEWISE_INLINE_LAMBDA {
          compute<decltype(columns)::value>(tile, place, product, warpgroup * 64 * C.row_blocks);
        });
        if (tile.down || !tile.last) return;
        told.wait_empty(shared_.tiles_done);
        arrive_as_warp(shared_.tiles_done.full[told.stage]);
        told.advance();
      });
      Machine::named_barrier_sync(kConsumersMeet, kConsumerThreads);
      if (Machine::thread() == kWarpgroupThreads) {
        shared_.opened.wait(0);
        GridCounters<Machine>(p_.counters).meet(Machine::blocks());
      }
      Machine::named_barrier_sync(kConsumersMeet, kConsumerThreads);
      combine_parts<Machine, C.type>(
          p_.shape, p_.parts, p_.out, Machine::block() * kConsumerThreads + Machine::thread() - kWarpgroupThreads,
          Machine::blocks() * kConsumerThreads, [&](int32_t token, int32_t slot) TILEWISE_INLINE_LAMBDA {
            return PartPlace{token * p_.shape.top_k + slot,
                             load_expert<Machine>(p_.shape, p_.topk_ids, token, slot) != kNobody};
          });
    }

   private:
    TILEWISE_INLINE void load_steps(const Tile& tile, int32_t first, int32_t end, ProducerPlace<Pipe>& place) const {
      TILEWISE_NO_UNROLL
      for (int32_t step = first; step < end; ++step, place.advance()) {
        Stage& stage = shared_.stage[place.stage()];
        Barrier<Machine>& full = place.begin(sizeof stage.weights.bytes);
        const int32_t k = step * C.weight_columns();
        if (tile.down) {
          load_tile(stage.weights, p_.down_map, full, k, tile.index * C.block_m(), tile.group.expert);
        } else {
          load_tile(stage.weights, p_.gate_up_map, full, k, 0, 0, tile.index * (C.block_j() / 8), tile.group.expert);
        }
      }
    }
    TILEWISE_INLINE TileScales<Machine, C> scales_of(const Tile& tile) const {
      const bool gates = !tile.down && C.gated;
      return {tile.down ? p_.down_scales : p_.gate_up_scales, tile.group.expert, gates,
              tile.index * (tile.down ? C.block_m() : C.block_j()),
              tile.down ? p_.shape.hidden : p_.shape.intermediate};
    }

    /// Block b of n has tiles b, b + n, ..., those of gate and up first.
    template <class Visit>
    TILEWISE_INLINE void for_each_tile(const Visit& visit) {
      const int32_t blocks = Machine::blocks(), block = Machine::block();
      const int32_t up = pairs_.num_groups() * tiles_up_, down = pairs_.num_groups() * tiles_down_;
      for (int32_t i = block; i < up + down; i += blocks) {
        const bool is_down = i >= up;
        const int32_t tile = is_down ? i - up : i;
        const int32_t of_group = is_down ? tiles_down_ : tiles_up_, number = tile / of_group;
        const ExpertGroup all = pairs_.group(number);
        // More rows than the block has columns only where a token has an expert twice and ids are held.
        for (int32_t first = 0; first < all.count; first += C.block_n) {
          const int32_t count = minimum(all.count - first, C.block_n);
          visit(Tile{{all.expert, all.first + first, count},
                     number,
                     tile - number * of_group,
                     is_down,
                     first + count == all.count});
        }
      }
    }
    TILEWISE_INLINE int32_t steps_of(const Tile& tile) const {
      return ceil_div(tile.down ? p_.shape.intermediate : p_.shape.hidden, C.depth);
    }
    /// The columns that are multiplied: 8, 16, 32, ... of which the rows are the first ones.
    TILEWISE_INLINE static int32_t columns_of(const Tile& tile) {
      int32_t columns = 8;
      while (columns < tile.group.count) columns *= 2;
      return columns;
    }
    template <int kColumns = 8, class Visit>
    TILEWISE_INLINE static void for_columns_of(const Tile& tile, const Visit& visit) {
      if constexpr (kColumns == C.block_n) {
        visit(Index<kColumns>{});
      } else if (tile.group.count <= kColumns) {
        visit(Index<kColumns>{});
      } else {
        for_columns_of<2 * kColumns>(tile, visit);
      }
    }
    /// Pairs of columns lane, lane + 32, ...
    template <int kCount>
    TILEWISE_INLINE void look_up(int32_t (&pair)[kCount], const Tile& tile) const {
      TILEWISE_UNROLL
      for (int i = 0; i < kCount; ++i) pair[i] = pairs_.pair(tile.group, Machine::lane() + 32 * i);
    }

    /// The rows of columns lane / kPieces, kRowsAtOnce further, ...: a warp copies so many at once.
    TILEWISE_INLINE void rows_to_copy(int32_t (&row)[kCopies], const Tile& tile) const {
      int32_t pair[kHeldColumns];
      look_up(pair, tile);
      TILEWISE_UNROLL
      for (int i = 0; i < kCopies; ++i) {
        const int32_t column = i * kRowsAtOnce + Machine::lane() / kPieces;
        const int32_t own = pair_of_column<Machine>(pair, column);
        row[i] = own;
      }
      if (!tile.down) rows_of_pairs(row);
    }
    /// Columns without a row, and what lies behind a row, become zeros.
    TILEWISE_INLINE void load_step(const int32_t (&row)[kCopies], int32_t columns, RowsTile<C.block_n>& to,
                                   const RowTensor& from, int32_t k, int32_t depth) const {
      const int32_t piece = Machine::lane() % kPieces, first = k + 8 * piece, own = Machine::lane() / kPieces;
      const int32_t chunk = piece / RowsTile<8>::kRowPieces, place = piece % RowsTile<8>::kRowPieces;
      const auto* const data = static_cast<const uint16_t*>(from.data) + first;
      uint8_t* const to_chunk = to.bytes + chunk * columns * kChunkRowBytes;
      TILEWISE_UNROLL
      for (int i = 0; i < kCopies; ++i) {
        if (i * kRowsAtOnce >= columns) break;
        const bool there = row[i] != kNobody && first < depth;
        Machine::copy_async(to_chunk + RowsTile<8>::place_of(i * kRowsAtOnce + own, place),
                            there ? data + row[i] * from.row_stride : from.data, there);
      }
    }

    template <int kCount>
    TILEWISE_INLINE void rows_of_pairs(int32_t (&pair)[kCount]) const {
      TILEWISE_UNROLL
      for (int32_t& own : pair) own = own == kNobody ? kNobody : own / p_.shape.top_k;
    }

    template <int kColumns, class Product>
    TILEWISE_INLINE void compute(const Tile& tile, ConsumerPlace<Pipe>& place, Product& product,
                                 int32_t first_row) const {
      using Sums = Fragment<Ops, 16, kColumns>;
      Sums sums[C.row_blocks];
      if constexpr (C.quantised()) {
        product.multiply(sums, place, scales_of(tile), first_row, steps_of(tile),
                         [&](uint32_t stage) TILEWISE_INLINE_LAMBDA -> Stage& { return shared_.stage[stage]; });
      } else {
        multiply<kColumns>(sums, place, first_row, steps_of(tile));
      }
      int32_t pair[ceil_div(kColumns, 32)];
      look_up(pair, tile);
      const MoeDecodeStore<Machine, C> store(p_);
      TILEWISE_UNROLL
      for (int i = 0; i < C.row_blocks; ++i) {
        if (tile.down) {
          store.store_part(sums[i], tile, pair, tile.index * C.block_m() + first_row + 64 * i);
        } else {
          store.store_h(sums[i], tile, pair, first_row + 64 * i);
        }
      }
    }

    template <int kColumns, class Sums>
    TILEWISE_INLINE void multiply(Sums (&sums)[C.row_blocks], ConsumerPlace<Pipe>& place, int32_t first_row,
                                  int32_t steps) const {
      for (Sums& part : sums) pin_registers<Machine>(part);
      TILEWISE_NO_UNROLL
      for (int32_t step = 0; step < steps; ++step, place.advance()) {
        place.wait();
        Stage& stage = shared_.stage[place.stage()];
        auto& rows = reinterpret_cast<RowsTile<kColumns>&>(stage.rows);
        Machine::fence_shared_writes();  // which rows' copies are
        Machine::wgmma_fence();
        TILEWISE_UNROLL
        for (int i = 0; i < C.row_blocks; ++i) {
          mma_ABt<Machine, C.type>(sums[i].tile[0], stage.weights, first_row + 64 * i, rows, step > 0);
        }
        Machine::wgmma_commit();
        Machine::template wgmma_wait<1>();
        if (step > 0) place.release_before();
      }
      Machine::template wgmma_wait<0>();
      for (Sums& part : sums) pin_registers<Machine>(part);
      place.release_before();
    }

    const MoeDecodeParams& p_;
    Shared& shared_;
    Pairs pairs_;
    const int32_t tiles_up_, tiles_down_;
  };
};

}  // namespace tilewise::device
