// A whole expert layer of many rows in one launch, behind the sort and the gather. Weights are M of every product, 128
// rows a block and 256 a cluster, whose blocks load an expert's rows for each other; these are N, to 256 of them, so
// that groups of any size waste little. Tiles of gate and up come first, those of down wait for their expert's h.
#pragma once

#include "device/moe/sm90/combine.h"
#include "device/moe/sm90/config.h"
#include "device/moe/sm90/pairs.h"
#include "device/sm90/grid_counters.h"
#include "device/sm90/load.h"
#include "device/sm90/mma.h"
#include "device/sm90/pipeline.h"
#include "device/sm90/roles.h"

namespace tilewise::device {

template <Sm90TileOps Ops, MoeLayerConfig C>
class Sm90MoeLayer {
  using Machine = typename Ops::Machine;
  static constexpr int kDepth = 64, kBlockM = 128, kStep = C.column_step;
  static constexpr int kStoredBoxRows = 16;
  static constexpr int kConsumers = 2, kConsumerThreads = kConsumers * kWarpgroupThreads;
  // Consumers meet nobody but their own warpgroup: one finishes a tile while the other multiplies.
  static constexpr int kWarpgroupMeets = 1;
  static constexpr int32_t kBlockJ = C.gated ? kBlockM / 2 : kBlockM;
  struct Stage {
    SwizzledTile<kBlockM, kDepth> weights;
    SwizzledTile<C.block_n, kDepth> rows;
  };
  using Pipe = Pipeline<Machine, C.stages, C.cluster>;
  using Pairs = ReadPairs<Machine, C.held_experts, C.block_n, kStep>;
  using Sums = Fragment<Ops, 16, C.block_n>;
  /// What a warpgroup leaves to be stored: 64 columns of half of the rows, or of gated values 32 columns of all.
  static constexpr int kStoredRows = C.block_n / 2;
  using Stored = SwizzledTile<kStoredRows, 64>;
  using StoredGated = SwizzledTile<C.block_n, 32, 2, 64>;
  static_assert(sizeof(Stored) == sizeof(StoredGated));
  struct Tile {
    ExpertGroup group;
    int32_t number;  // of the group
    int32_t row;     // of weights, the block's first
    int32_t down;    // 0: of gate and up
  };

 public:
  using Params = MoeLayerParams;
  struct Shared {
    Stage stage[C.stages];
    Stored stored[kConsumers];
    alignas(16) float weight[kConsumers][C.block_n];
    Pipe pipe;
    Barrier<Machine> opened;                    // the counters, to this block's warps
    Ring<Machine, 1> to_be_stored[kConsumers];  // between consumers and the warp that stores for each
  };

  TILEWISE_INLINE static void run(const MoeLayerParams& p, Shared& shared) {
    if (Machine::thread() == 0) {
      shared.pipe.init(4 * kConsumers);
      shared.opened.init(1);
      for (auto& ring : shared.to_be_stored) ring.init(4, 1);
      Machine::publish_barriers();
      Machine::prefetch_map(p.rows_map[0]), Machine::prefetch_map(p.gate_up_map), Machine::prefetch_map(p.h_map[0]);
      Machine::prefetch_map(p.down_map), Machine::prefetch_map(p.parts_map);
    }
    meet_cluster<Machine, C.cluster>();
    let_next_step_begin<Machine>();
    wait_for_step_before<Machine>();
    run_roles<Machine, kConsumers>(
        [&](int warp) TILEWISE_INLINE_LAMBDA {
          if (warp == 0) Role(p, shared).load();
          if (warp == 1 || warp == 2) Role(p, shared).store(warp - 1);
        },
        [&](int32_t warpgroup) TILEWISE_INLINE_LAMBDA { Role(p, shared).consume(warpgroup); });
    leave_cluster<Machine, C.cluster>();
  }

 private:
  /// What a warp does, all of whose lanes go through the same tiles.
  class Role {
   public:
    TILEWISE_INLINE Role(const MoeLayerParams& p, Shared& shared)
        : p_(p),
          shared_(shared),
          pairs_(p),
          rank_(C.cluster > 1 ? Machine::rank_in_cluster() : 0),
          tiles_up_(ceil_div(p.shape.intermediate, kBlockJ * C.cluster)),
          tiles_down_(ceil_div(p.shape.hidden, kBlockM * C.cluster)) {}

    TILEWISE_INLINE void load() {
      ProducerPlace<Pipe> place(shared_.pipe);
      const GridCounters<Machine> counters(p_.counters);
      int32_t ready = kNobody;  // the group whose h is known to be there
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        if (tile.down && tile.number != ready) {
          if (ready == kNobody) shared_.opened.wait(0);
          counters.wait(tile.number, tiles_up_ * C.cluster * kConsumers), ready = tile.number;
        }
        if (Machine::lane() == 0) load_tile_steps(tile, place);
        Machine::wave_sync();
      });
    }

    /// Stores what a warpgroup has left, and tells other blocks of h: no consumer waits for either.
    TILEWISE_INLINE void store(int32_t warpgroup) {
      const GridCounters<Machine> counters(p_.counters);
      Ring<Machine, 1>& ring = shared_.to_be_stored[warpgroup];
      RingPlace<1> place;
      if (warpgroup == 0) {
        if (Machine::lane() == 0) counters.open(pairs_.num_groups());
        arrive_as_warp(shared_.opened);
      } else {
        shared_.opened.wait(0);
      }
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        const int32_t turns = turns_of(tile);
        for (int32_t turn = 0; turn < turns; ++turn, place.advance()) {
          place.wait_full(ring);
          if (!tile.down && C.gated) {
            store_rows(reinterpret_cast<StoredGated&>(shared_.stored[warpgroup]), tile, p_.h_store_map, 0,
                       tile.row / 2 + 32 * warpgroup);
          } else {
            store_rows(shared_.stored[warpgroup], tile, tile.down ? p_.parts_map : p_.h_store_map, turn * kStoredRows,
                       tile.row + 64 * warpgroup);
          }
          if (Machine::lane() == 0) Machine::commit_stores(), Machine::wait_stores_read();
          arrive_as_warp(ring.empty[0]);
        }
        if (tile.down) return;
        if (Machine::lane() == 0) Machine::wait_stores(), counters.arrive(tile.number);
        Machine::wave_sync();
      });
      if (Machine::lane() == 0) Machine::wait_stores();
      Machine::wave_sync();
      if (Machine::lane() == 0) counters.meet(Machine::blocks() * kConsumers);
      arrive_as_warp(ring.empty[0]);
    }

    TILEWISE_INLINE void consume(int32_t warpgroup) {
      ConsumerPlace<Pipe> place(shared_.pipe);
      RingPlace<1> stored;
      const int32_t thread = Machine::thread() - kWarpgroupThreads;
      Sums sums[1];
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        FloatRun<4> weight;
        if (uses_weights(tile)) weight = load_weights(tile);  // they come while the tile is multiplied
        for_columns_of(tile, [&](auto columns) TILEWISE_INLINE_LAMBDA {
          multiply<decltype(columns)::value>(sums[0], place, warpgroup * 64, steps_of(tile));
        });
        if (uses_weights(tile)) leave_weights(weight, warpgroup);
        finish_tile(sums[0], tile, warpgroup, stored);
      });
      Ring<Machine, 1>& ring = shared_.to_be_stored[warpgroup];
      stored.wait_empty(ring), stored.advance();
      stored.wait_empty(ring);  // all blocks have stored all parts
      combine_parts<Machine, C.type>(
          p_.shape, p_.parts, p_.out, Machine::block() * kConsumerThreads + thread,
          Machine::blocks() * kConsumerThreads, [&](int32_t token, int32_t slot) TILEWISE_INLINE_LAMBDA {
            const int32_t row = Machine::load_global(p_.sorted.rows + token * p_.shape.top_k + slot);
            return PartPlace{maximum(row, 0), row != kNobody};
          });
    }

   private:
    /// Cluster c of n has tiles c, c + n, ..., those of gate and up first.
    template <class Visit>
    TILEWISE_INLINE void for_each_tile(const Visit& visit) {
      const int32_t up = pairs_.num_groups() * tiles_up_, all = up + pairs_.num_groups() * tiles_down_;
      for (int32_t i = Machine::block() / C.cluster; i < all; i += Machine::blocks() / C.cluster) {
        const bool is_down = i >= up;
        const GroupTile tile = pairs_.place(is_down ? i - up : i, is_down ? tiles_down_ : tiles_up_);
        visit(Tile{tile.group, tile.number, (tile.index * C.cluster + rank_) * kBlockM, is_down});
      }
    }
    TILEWISE_INLINE int32_t steps_of(const Tile& tile) const {
      return ceil_div(tile.down ? p_.shape.intermediate : p_.shape.hidden, kDepth);
    }
    TILEWISE_INLINE static int32_t columns_of(const Tile& tile) { return ceil_div(tile.group.count, kStep) * kStep; }
    template <int kColumns = kStep, class Visit>
    TILEWISE_INLINE static void for_columns_of(const Tile& tile, const Visit& visit) {
      if constexpr (kColumns == C.block_n) {
        visit(Index<kColumns>{});
      } else if (tile.group.count <= kColumns) {
        visit(Index<kColumns>{});
      } else {
        for_columns_of<kColumns + kStep>(tile, visit);
      }
    }
    TILEWISE_INLINE static bool uses_weights(const Tile& tile) { return tile.down != C.weight_on_input; }
    /// How often what waits to be stored is filled for a tile.
    TILEWISE_INLINE static int32_t turns_of(const Tile& tile) {
      return (tile.down || !C.gated) && tile.group.count > kStoredRows ? 2 : 1;
    }

    /// A block loads its weights, and its share of the columns for all blocks of the cluster.
    TILEWISE_INLINE void load_tile_steps(const Tile& tile, ProducerPlace<Pipe>& place) const {
      constexpr uint32_t kAll = (1u << C.cluster) - 1;
      const int32_t steps = steps_of(tile), columns = columns_of(tile), share = columns / C.cluster;
      const TensorMap(&maps)[kRowBoxes] = tile.down ? p_.h_map : p_.rows_map;
      TILEWISE_NO_UNROLL
      for (int32_t step = 0; step < steps; ++step, place.advance()) {
        Stage& stage = shared_.stage[place.stage()];
        Barrier<Machine>& full =
            place.begin(static_cast<int32_t>(sizeof stage.weights.bytes) + columns * kChunkRowBytes);
        const int32_t k = step * kDepth;
        if (tile.down) {
          load_tile(stage.weights, p_.down_map, full, k, tile.row, tile.group.expert);
        } else {
          load_tile(stage.weights, p_.gate_up_map, full, k, 0, 0, tile.row / (C.gated ? 16 : 8), tile.group.expert);
        }
        const auto copy = [&](const TensorMap& boxes, int32_t first) TILEWISE_INLINE_LAMBDA {
          uint8_t* const to = stage.rows.bytes + first * kChunkRowBytes;
          if constexpr (C.cluster > 1) {
            Machine::copy_box_to_blocks(kAll, to, boxes, full.state(), k, tile.group.first + first);
          } else {
            Machine::copy_box(to, boxes, full.state(), k, tile.group.first + first);
          }
        };
        int32_t first = rank_ * share;
        const int32_t end = first + share;
        TILEWISE_UNROLL
        for (int box = 0; box < kRowBoxes; ++box) {
          const int32_t rows = kMostBoxRows >> box;
          for (; first + rows <= end; first += rows) copy(maps[box], first);
        }
      }
    }

    /// Sums are the first columns of all that there is room for.
    template <int kColumns>
    TILEWISE_INLINE void multiply(Sums& all, ConsumerPlace<Pipe>& place, int32_t first_row, int32_t steps) const {
      auto& sums = reinterpret_cast<Fragment<Ops, 16, kColumns>&>(all);
      pin_registers<Machine>(sums);
      TILEWISE_NO_UNROLL
      for (int32_t step = 0; step < steps; ++step, place.advance()) {
        place.wait();
        Stage& stage = shared_.stage[place.stage()];
        auto& rows = reinterpret_cast<SwizzledTile<kColumns, kDepth>&>(stage.rows);
        Machine::wgmma_fence();
        mma_ABt<Machine, C.type>(sums.tile[0], stage.weights, first_row, rows, step > 0);
        Machine::wgmma_commit();
        Machine::template wgmma_wait<1>();
        if (step > 0) place.release_before();
      }
      Machine::template wgmma_wait<0>();
      pin_registers<Machine>(sums);
      place.release_before();
    }

    TILEWISE_INLINE void finish_tile(Sums& sums, const Tile& tile, int32_t warpgroup, RingPlace<1>& stored) const {
      const int32_t row = tile.row + warpgroup * 64 + warp_row<Machine>() + Machine::lane() / 4;
      if (tile.down) {
        float bias[2] = {};
        if constexpr (C.biases) load_biases(bias, p_.down_bias, tile.group.expert, 0, row, 8, p_.shape.hidden);
        leave_beside(sums, tile, warpgroup, stored, [&](float x, int slot, float weight) TILEWISE_INLINE_LAMBDA {
          return C.weight_on_input ? x + bias[slot] : (x + bias[slot]) * weight;
        });
      } else if constexpr (!C.gated) {
        float bias[2] = {};
        if constexpr (C.biases) load_biases(bias, p_.gate_up_bias, tile.group.expert, 0, row, 8, p_.shape.intermediate);
        leave_beside(sums, tile, warpgroup, stored, [&](float x, int slot, float weight) TILEWISE_INLINE_LAMBDA {
          x = (C.weight_on_input ? x * weight : x) + bias[slot];
          return activate_clamped<Machine, C.kind(), C.clamps()>(x, p_.numbers);
        });
      } else {
        leave_gated(sums, tile, warpgroup, stored);
      }
    }
    TILEWISE_INLINE static void load_biases(float (&to)[2], const ExpertBias& from, int32_t expert, int32_t gate,
                                            int32_t row, int32_t apart, int32_t rows) {
      TILEWISE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int64_t at = expert * from.expert_stride + gate * from.gate_stride + (row + apart * i) * from.stride;
        const bool there = from.data != nullptr && row + apart * i < rows;
        to[i] = there ? load_number<Machine>(from.data, at, from.type) : 0.0f;
      }
    }
    /// Of four columns a thread.
    TILEWISE_INLINE FloatRun<4> load_weights(const Tile& tile) const {
      const int32_t first = Machine::thread() % kWarpgroupThreads * 4;
      FloatRun<4> weight;
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int32_t column = first + i;
        weight.value[i] =
            column < tile.group.count ? Machine::load_global(p_.row_weights + tile.group.first + column) : 0.0f;
      }
      return weight;
    }
    /// Leaves them to this warpgroup.
    TILEWISE_INLINE void leave_weights(const FloatRun<4>& weight, int32_t warpgroup) const {
      const int32_t first = Machine::thread() % kWarpgroupThreads * 4;
      meet(warpgroup);  // all have read those of the tile before
      if (first < C.block_n) Machine::store_shared(&shared_.weight[warpgroup][first], weight);
      meet(warpgroup);
    }
    TILEWISE_INLINE static void meet(int32_t warpgroup) {
      Machine::named_barrier_sync(kWarpgroupMeets + warpgroup, kWarpgroupThreads);
    }
    /// Of this lane's two columns of eight.
    TILEWISE_INLINE FloatRun<2> weights_of(int32_t warpgroup, int c) const {
      return Machine::template load_shared<FloatRun<2>>(&shared_.weight[warpgroup][8 * c + 2 * (Machine::lane() % 4)]);
    }

    /// Leaves the gated values of all columns: rows of 32 values, of which each warp has eight.
    TILEWISE_INLINE void leave_gated(Sums& sums, const Tile& tile, int32_t warpgroup, RingPlace<1>& stored) const {
      const int lane = Machine::lane(), warp = Machine::wave() % 4;
      float gate_bias[2] = {}, up_bias[2] = {};  // of one value: the second ones are not asked for
      if constexpr (C.biases) {
        const int32_t own = tile.row / 2 + warpgroup * 32 + warp * 8 + lane / 4;
        load_biases(gate_bias, p_.gate_up_bias, tile.group.expert, 0, own, 0, p_.shape.intermediate);
        load_biases(up_bias, p_.gate_up_bias, tile.group.expert, 1, own, 0, p_.shape.intermediate);
      }
      stored.wait_empty(shared_.to_be_stored[warpgroup]);
      TILEWISE_UNROLL
      for (int c = 0; c < Sums::kColTiles; c += 4) {
        if (8 * c >= tile.group.count) break;
        uint32_t packed[4];
        TILEWISE_UNROLL
        for (int m = 0; m < 4; ++m) {
          const auto& x = sums.tile[0][c + m];
          float value[2];
          const FloatRun<2> weight = C.weight_on_input ? weights_of(warpgroup, c + m) : FloatRun<2>{{1.0f, 1.0f}};
          TILEWISE_UNROLL
          for (int i = 0; i < 2; ++i) {
            value[i] = activate_gated<Machine, C.kind(), C.clamps()>(
                x[i] * weight.value[i] + gate_bias[0], x[2 + i] * weight.value[i] + up_bias[0], p_.numbers);
          }
          packed[m] = Machine::template pack<C.type>(value[0], value[1]);
        }
        auto& to = reinterpret_cast<StoredGated&>(shared_.stored[warpgroup]);
        Machine::store_matrices_transposed(to.piece(8 * c + lane, warp), packed);
      }
      announce(warpgroup, stored);
    }

    /// Leaves value_of(sum, slot, the column's weight): 64 of each warpgroup beside each other, half of all columns at
    /// a time.
    template <class ValueOf>
    TILEWISE_INLINE void leave_beside(Sums& sums, const Tile& tile, int32_t warpgroup, RingPlace<1>& stored,
                                      const ValueOf& value_of) const {
      const int lane = Machine::lane(), piece = 2 * (Machine::wave() % 4) + lane / 8 % 2;
      const bool weighs = uses_weights(tile);
      TILEWISE_UNROLL
      for (int turn = 0; turn < 2; ++turn) {
        if (turn == 1 && turns_of(tile) == 1) break;
        stored.wait_empty(shared_.to_be_stored[warpgroup]);
        TILEWISE_UNROLL
        for (int c = turn * kStoredRows / 8; c < (turn + 1) * kStoredRows / 8; c += 2) {
          if (8 * c >= tile.group.count) break;
          uint32_t packed[4];
          TILEWISE_UNROLL
          for (int m = 0; m < 4; ++m) {
            const auto& x = sums.tile[0][c + m / 2];
            const FloatRun<2> weight = weighs ? weights_of(warpgroup, c + m / 2) : FloatRun<2>{{1.0f, 1.0f}};
            const int slot = m % 2;
            packed[m] = Machine::template pack<C.type>(value_of(x[2 * slot], slot, weight.value[0]),
                                                       value_of(x[2 * slot + 1], slot, weight.value[1]));
          }
          const int row = 8 * c + lane / 16 * 8 + lane % 8 - turn * kStoredRows;
          Machine::store_matrices_transposed(shared_.stored[warpgroup].piece(row, piece), packed);
        }
        announce(warpgroup, stored);
      }
    }
    TILEWISE_INLINE void announce(int32_t warpgroup, RingPlace<1>& stored) const {
      Machine::fence_shared_writes();
      arrive_as_warp(shared_.to_be_stored[warpgroup].full[0]);
      stored.advance();
    }

    /// Stores the group's rows from `first` on. Whole boxes by TMA, since rows behind the group's are another's, and
    /// the others row by row.
    template <class From>
    TILEWISE_INLINE void store_rows(From& from, const Tile& tile, const TensorMap& map, int32_t first,
                                    int32_t col) const {
      const int32_t rows = minimum(tile.group.count - first, From::kRows), to_row = tile.group.first + first;
      const int32_t whole = rows / kStoredBoxRows * kStoredBoxRows;
      if (Machine::lane() == 0) {
        for (int32_t i = 0; i < whole; i += kStoredBoxRows) {
          Machine::store_box(map, from.bytes + i * From::kRowBytes, col, to_row + i);
        }
      }
      Machine::wave_sync();
      constexpr int kPieces = From::kRowPieces;
      const RowTensor& to = tile.down ? p_.parts : p_.h;
      const int32_t piece = Machine::lane() % kPieces, at = col + 8 * piece;
      const bool there = at < (tile.down ? p_.shape.hidden : p_.shape.intermediate);
      for (int32_t i = whole + Machine::lane() / kPieces; i < rows; i += 32 / kPieces) {
        const Chunk chunk = Machine::template load_shared<Chunk>(from.piece(i, piece));
        auto* const row = static_cast<uint16_t*>(to.data) + (to_row + i) * to.row_stride;
        if (there) Machine::store_global(reinterpret_cast<Chunk*>(row + at), chunk);
      }
      Machine::wave_sync();
    }

    const MoeLayerParams& p_;
    Shared& shared_;
    Pairs pairs_;
    const int32_t rank_, tiles_up_, tiles_down_;
  };
};

}  // namespace tilewise::device
