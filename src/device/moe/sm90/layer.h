// A whole expert layer of many rows in one launch, behind the sort and the gather. Weights are M of every product, 128
// rows a block and 256 a cluster, whose blocks load an expert's rows for each other; these are N, to 256 of them, so
// that groups of any size waste little. Tiles of gate and up come first, those of down wait for their expert's h.
#pragma once

#include "device/moe/sm90/combine.h"
#include "device/moe/sm90/config.h"
#include "device/moe/sm90/pairs.h"
#include "device/sm90/grid_counters.h"
#include "device/sm90/roles.h"
#include "device/sm90/swapped_product.h"

namespace tilewise::device {

template <Sm90TileOps Ops, MoeLayerConfig C>
class Sm90MoeLayer {
  using Machine = typename Ops::Machine;
  using Product = SwappedProduct<Ops, SwappedShape{C.type, C.block_n, C.stages, C.cluster, C.column_step}>;
  using Stage = typename Product::Stage;
  using Pipe = typename Product::Pipe;
  using Sums = typename Product::Sums;
  using Stored = typename Product::Stored;
  using StoredRing = typename Product::StoredRing;
  static constexpr int kDepth = Product::kDepth, kBlockM = Product::kBlockM, kStoredRows = Product::kStoredRows;
  static constexpr int kConsumers = Product::kConsumers, kConsumerThreads = kConsumers * kWarpgroupThreads;
  // Consumers meet nobody but their own warpgroup: one finishes a tile while the other multiplies.
  static constexpr int kWarpgroupMeets = 1;
  static constexpr int32_t kLeft = C.saves == 0 ? 1 : C.gated ? 3 : 2;  // of a tile of gate and up
  static constexpr int32_t kBlockJ = C.gated ? kBlockM / 2 : kBlockM;
  using Pairs = ReadPairs<Machine, C.held_experts, C.block_n, C.column_step>;
  /// What a warpgroup leaves of gated values: 32 columns of all rows.
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
    Barrier<Machine> opened;  // the counters, to this block's warps
    StoredRing to_be_stored[kConsumers];
    Barrier<Machine> met[kConsumers];  // all blocks have stored all parts
  };

  TILEWISE_INLINE static void run(const MoeLayerParams& p, Shared& shared) {
    run_kernel<Machine, kConsumers, C.cluster>(
        [&]() TILEWISE_INLINE_LAMBDA {
          shared.pipe.init(4 * kConsumers);
          shared.opened.init(1);
          for (auto& ring : shared.to_be_stored) ring.init(4, 1);
          for (auto& barrier : shared.met) barrier.init(1);
          prefetch_maps<Machine>(p.rows_map[0], p.gate_up_map, p.h_map[0], p.down_map, p.parts_map);
        },
        [&](int warp) TILEWISE_INLINE_LAMBDA {
          if (warp == 0) Role(p, shared).load();
          if (warp == 1 || warp == 2) Role(p, shared).store(warp - 1);
        },
        [&](int32_t warpgroup) TILEWISE_INLINE_LAMBDA { Role(p, shared).consume(warpgroup); });
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
      StoredRing& ring = shared_.to_be_stored[warpgroup];
      RingPlace<1> place;
      if (warpgroup == 0) {
        if (Machine::lane() == 0) counters.open(pairs_.num_groups());
        arrive_as_warp(shared_.opened);
      } else {
        shared_.opened.wait(0);
      }
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        Product::take_turns(turns_of(tile), ring, place, [&](int32_t turn) TILEWISE_INLINE_LAMBDA {
          if (!tile.down && C.gated) {
            Product::store_rows(reinterpret_cast<StoredGated&>(shared_.stored[warpgroup]), tile.group,
                                stored_rows(tile, turn), 0, tile.row / 2 + 32 * warpgroup);
          } else {
            const int32_t halves = Product::turns_of(tile.group.count);
            Product::store_rows(shared_.stored[warpgroup], tile.group, stored_rows(tile, turn / halves),
                                turn % halves * kStoredRows, tile.row + 64 * warpgroup);
          }
        });
        if (tile.down) return;
        if (Machine::lane() == 0) Machine::wait_stores(), counters.arrive(tile.number);
        Machine::wave_sync();
      });
      if (Machine::lane() == 0) Machine::wait_stores();
      Machine::wave_sync();
      if (Machine::lane() == 0) counters.meet(Machine::blocks() * kConsumers);
      arrive_as_warp(shared_.met[warpgroup]);
    }

    TILEWISE_INLINE void consume(int32_t warpgroup) {
      ConsumerPlace<Pipe> place(shared_.pipe);
      RingPlace<1> stored;
      const int32_t thread = Machine::thread() - kWarpgroupThreads;
      Sums sums;
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        FloatRun<4> weight;
        if (uses_weights(tile)) weight = load_weights(tile);  // they come while the tile is multiplied
        Product::multiply(sums, place, shared_.stage, warpgroup, steps_of(tile), tile.group.count);
        if (uses_weights(tile)) leave_weights(weight, warpgroup);
        finish_tile(sums, tile, warpgroup, stored);
      });
      shared_.met[warpgroup].wait(0);
      combine_parts<Machine, C.type>(p_.shape, p_.parts, p_.out, Machine::block() * kConsumerThreads + thread,
                                     Machine::blocks() * kConsumerThreads, place_of_slot<Machine>(p_.shape, p_.sorted));
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
    TILEWISE_INLINE static bool uses_weights(const Tile& tile) { return tile.down != C.weight_on_input; }
    /// How often what waits to be stored is filled for a tile.
    TILEWISE_INLINE static int32_t turns_of(const Tile& tile) {
      if (tile.down) return Product::turns_of(tile.group.count);
      return C.gated ? kLeft : Product::turns_of(tile.group.count) * kLeft;
    }
    /// What a tile leaves first are values or parts, and then saved sums, of gates before those of ups.
    TILEWISE_INLINE StoredRows stored_rows(const Tile& tile, int32_t which) const {
      if (C.saves != 0 && which > 0) {
        uint16_t* const sums = static_cast<uint16_t*>(p_.sums.data) + (which - 1) * p_.shape.intermediate;
        return {p_.sums_map[which - 1], sums, p_.sums.row_stride, p_.shape.intermediate};
      }
      const RowTensor& to = tile.down ? p_.parts : p_.h;
      return {tile.down ? p_.parts_map : p_.h_store_map, static_cast<uint16_t*>(to.data), to.row_stride,
              tile.down ? p_.shape.hidden : p_.shape.intermediate};
    }

    /// A block loads its weights, and its share of the rows for all blocks of the cluster.
    TILEWISE_INLINE void load_tile_steps(const Tile& tile, ProducerPlace<Pipe>& place) const {
      const int32_t steps = steps_of(tile);
      TILEWISE_NO_UNROLL
      for (int32_t step = 0; step < steps; ++step, place.advance()) {
        Stage& stage = shared_.stage[place.stage()];
        Barrier<Machine>& full = place.begin(Product::kWeightBytes + Product::row_bytes_of(tile.group));
        const int32_t k = step * kDepth;
        if (tile.down) {
          load_tile(stage.weights, p_.down_map, full, k, tile.row, tile.group.expert);
        } else {
          load_tile(stage.weights, p_.gate_up_map, full, k, 0, 0, tile.row / (C.gated ? 16 : 8), tile.group.expert);
        }
        const TensorMap(&maps)[kRowBoxes] = tile.down ? p_.h_map : p_.rows_map;
        Product::load_rows(
            stage, full, [&](int box) TILEWISE_INLINE_LAMBDA -> const TensorMap& { return maps[box]; }, tile.group,
            rank_, k);
      }
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
        if constexpr (C.saves != 0) {
          leave_beside(sums, tile, warpgroup, stored, [&](float x, int, float) TILEWISE_INLINE_LAMBDA { return x; });
        }
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
      float gate_bias[2] = {}, up_bias[2] = {};  // of one value: the second ones are not asked for
      if constexpr (C.biases) {
        const int32_t own = tile.row / 2 + warpgroup * 32 + Machine::wave() % 4 * 8 + Machine::lane() / 4;
        load_biases(gate_bias, p_.gate_up_bias, tile.group.expert, 0, own, 0, p_.shape.intermediate);
        load_biases(up_bias, p_.gate_up_bias, tile.group.expert, 1, own, 0, p_.shape.intermediate);
      }
      leave_rows(tile, warpgroup, stored, [&](int c) TILEWISE_INLINE_LAMBDA {
        const auto& x = sums.tile[0][c];
        float value[2];
        const FloatRun<2> weight = C.weight_on_input ? weights_of(warpgroup, c) : FloatRun<2>{{1.0f, 1.0f}};
        TILEWISE_UNROLL
        for (int i = 0; i < 2; ++i) {
          value[i] = activate_gated<Machine, C.kind(), C.clamps()>(x[i] * weight.value[i] + gate_bias[0],
                                                                   x[2 + i] * weight.value[i] + up_bias[0], p_.numbers);
        }
        return Machine::template pack<C.type>(value[0], value[1]);
      });
      if constexpr (C.saves != 0) {
        TILEWISE_UNROLL
        for (int gate = 0; gate < 2; ++gate) {
          leave_rows(tile, warpgroup, stored, [&](int c) TILEWISE_INLINE_LAMBDA {
            const auto& x = sums.tile[0][c];
            return Machine::template pack<C.type>(x[2 * gate], x[2 * gate + 1]);
          });
        }
      }
    }
    /// pair_of(c): of the lane's own row those of two adjacent columns of eight.
    template <class PairOf>
    TILEWISE_INLINE void leave_rows(const Tile& tile, int32_t warpgroup, RingPlace<1>& stored,
                                    const PairOf& pair_of) const {
      stored.wait_empty(shared_.to_be_stored[warpgroup]);
      TILEWISE_UNROLL
      for (int c = 0; c < Sums::kColTiles; c += 4) {
        if (8 * c >= tile.group.count) break;
        uint32_t packed[4];
        TILEWISE_UNROLL
        for (int m = 0; m < 4; ++m) packed[m] = pair_of(c + m);
        auto& to = reinterpret_cast<StoredGated&>(shared_.stored[warpgroup]);
        Machine::store_matrices_transposed(to.piece(8 * c + Machine::lane(), Machine::wave() % 4), packed);
      }
      Product::announce(shared_.to_be_stored[warpgroup], stored);
    }

    /// Leaves value_of(sum, slot, the column's weight).
    template <class ValueOf>
    TILEWISE_INLINE void leave_beside(Sums& sums, const Tile& tile, int32_t warpgroup, RingPlace<1>& stored,
                                      const ValueOf& value_of) const {
      const bool weighs = uses_weights(tile);
      Product::leave(tile.group.count, shared_.stored[warpgroup], shared_.to_be_stored[warpgroup], stored,
                     [&](int c, int slot) TILEWISE_INLINE_LAMBDA {
                       const auto& x = sums.tile[0][c];
                       const FloatRun<2> weight = weighs ? weights_of(warpgroup, c) : FloatRun<2>{{1.0f, 1.0f}};
                       return Machine::template pack<C.type>(value_of(x[2 * slot], slot, weight.value[0]),
                                                             value_of(x[2 * slot + 1], slot, weight.value[1]));
                     });
    }

    const MoeLayerParams& p_;
    Shared& shared_;
    Pairs pairs_;
    const int32_t rank_, tiles_up_, tiles_down_;
  };
};

}  // namespace tilewise::device
