// One product of an expert layer in fp8 with scales of blocks, in a launch of its own: rows of 1 x 128 by weights of
// 128 x 128. The first product's epilogue activates its sums and quantises them for the second one, whose epilogue
// leaves weighted parts. Rows are M, since a factor of a row costs least there: 128 of them a block, by 256 rows of
// weights. The two blocks of a cluster have two groups of an expert's rows and load halves of the weights for each
// other, since memory gives them no faster than a block multiplies 128 rows by them; of a group that is left over they
// have weights side by side and load halves of the rows for each other.
//
// A warpgroup multiplies a block of 64 by 128 and promotes it while the other one multiplies. Each has 64 rows by all
// weights; where a tile has no more than 64, all rows by half of the weights.
#pragma once

#include "device/moe/ids.h"
#include "device/moe/sm90/config.h"
#include "device/moe/sm90/scaled_finish.h"
#include "device/sm90/contract.h"
#include "device/sm90/load.h"
#include "device/sm90/mma.h"
#include "device/sm90/paired_rows.h"
#include "device/sm90/pipeline.h"
#include "device/sm90/promotion.h"
#include "device/sm90/roles.h"

namespace tilewise::device {

template <Sm90TileOps Ops, MoeScaledConfig C>
class Sm90MoeScaledProduct {
  using Machine = typename Ops::Machine;
  using Tile = MoeScaledTile;
  static constexpr int kDepth = 128, kHalf = 64, kRows = 2 * kHalf, kConsumers = 2, kScaleWarps = 2;
  static constexpr int kBlocks = 2, kWeightRows = kBlocks * kScaledColumns;  // of weights, each with scales of its own
  static constexpr int kBoxRows = kHalf / C.cluster;                         // of a load of rows
  static constexpr int kHalfWeights = kWeightRows / 2;                       // of a load of weights
  struct Stage {
    SwizzledTile<kRows, kDepth, 1> rows;
    SwizzledTile<kWeightRows, kDepth, 1> weights;
  };
  using Pipe = Pipeline<Machine, C.stages, C.cluster>;
  static_assert(C.cluster == 1 || C.cluster == 2);
  using Groups = PairedRows<Machine, C.held_experts, kRows, kHalf, C.cluster == 2>;
  using Finish = ScaledFinish<Ops, C>;
  using Sums = typename Finish::Sums;
  struct alignas(16) WeightScale {
    FloatRun<2> of;  // gates, and ups
  };
  /// Tiles as the warp that looks them up tells the others, so that no warp that multiplies does.
  struct Told {
    static constexpr int kSlots = 4;
    Chunk tile[kSlots];
    Ring<Machine, kSlots> ring;
  };

 public:
  using Params = MoeScaledParams;
  struct Shared {
    Stage stage[C.stages];
    FloatRun<4> row_scale[C.stages][kRows / 4];
    WeightScale weight_scale[C.stages][kBlocks];
    typename Finish::Shared finish;
    Told told;
    Pipe pipe;
  };

  TILEWISE_INLINE static void run(const MoeScaledParams& p, Shared& shared) {
    run_kernel<Machine, kConsumers, C.cluster>(
        [&]() TILEWISE_INLINE_LAMBDA {
          shared.pipe.init(4 * kConsumers, 1 + kWarpArrivals);
          shared.told.ring.init(1, 4 * kConsumers + kScaleWarps);
          prefetch_maps<Machine>(p.rows_map, p.weights_map);
        },
        [&](int warp) TILEWISE_INLINE_LAMBDA {
          if (warp == 0) Role(p, shared).load();
          if (warp == 1 || warp == 2) Role(p, shared).load_scales(warp - 1);
        },
        [&](int32_t warpgroup) TILEWISE_INLINE_LAMBDA { Role(p, shared).consume(warpgroup); });
  }

 private:
  /// What a warp does, all of whose lanes go through the same tiles.
  class Role {
   public:
    TILEWISE_INLINE Role(const MoeScaledParams& p, Shared& shared)
        : p_(p), shared_(shared), steps_(ceil_div(C.down ? p.shape.intermediate : p.shape.hidden, kDepth)) {}

    /// Cluster c of n has tiles c, c + n, ...
    TILEWISE_INLINE void load() {
      const int32_t rank = C.cluster > 1 ? Machine::rank_in_cluster() : 0;
      const int32_t rows = C.down ? p_.shape.hidden : 2 * p_.shape.intermediate;
      const Groups groups(p_.sorted.offsets, p_.shape.num_experts, ceil_div(rows, kWeightRows),
                          ceil_div(rows, kWeightRows * C.cluster));
      ProducerPlace<Pipe> place(shared_.pipe);
      for (int32_t i = Machine::block() / C.cluster; i < groups.num_tiles(); i += Machine::blocks() / C.cluster) {
        const PairedTile found = groups.place(i, rank);
        const Tile tile{found.group, (found.paired ? found.index : found.index * C.cluster + rank) * kWeightRows};
        tell(tile);
        if (Machine::lane() == 0) load_steps(tile, found.paired, rank, place);
        Machine::wave_sync();
      }
      tell(Tile{{kNobody, 0, 0}, 0});
    }

    /// Two warps take steps in turn. A lane has scales of four rows, the first ones those of the tile's weights too.
    /// Each is asked for kAhead of its warp's steps before it is left: consumers take a step in the time that a load
    /// takes.
    TILEWISE_INLINE void load_scales(int32_t turn) {
      constexpr int kAhead = 2;
      ProducerPlace<Pipe> place(shared_.pipe);
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        const LaneScales scales(p_, tile);
        typename LaneScales::Values values[kAhead];
        TILEWISE_UNROLL
        for (int i = 0; i < kAhead; ++i) values[i] = scales.load(turn + i * kScaleWarps, steps_);
        if (turn == 1) place.advance();
        int32_t step = turn;
        TILEWISE_NO_UNROLL
        while (step < steps_) {
          TILEWISE_UNROLL
          for (int i = 0; i < kAhead; ++i, step += kScaleWarps) {
            if (step >= steps_) break;
            place.wait();
            scales.leave(values[i], shared_.row_scale[place.stage()], shared_.weight_scale[place.stage()]);
            arrive_as_lanes(place.full());
            place.advance();
            if (step + 1 < steps_) place.advance();
            values[i] = scales.load(step + kAhead * kScaleWarps, steps_);
          }
        }
      });
    }

    TILEWISE_INLINE void consume(int32_t warpgroup) {
      ConsumerPlace<Pipe> place(shared_.pipe);
      Finish finish(p_, shared_.finish, warpgroup);
      Sums sums[kBlocks];
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        if (tile.group.count > kHalf) {
          multiply<2>(sums, place, warpgroup * kHalf, 0);
          finish.template finish_tile<2>(sums, tile, warpgroup * kHalf, 0);
        } else {
          multiply<1>(sums, place, 0, warpgroup);
          finish.template finish_tile<1>(sums, tile, 0, warpgroup);
        }
      });
    }

   private:
    TILEWISE_INLINE void tell(const Tile& tile) {
      const auto word = [](int32_t x) TILEWISE_INLINE_LAMBDA { return static_cast<uint32_t>(x); };
      told_.wait_empty(shared_.told.ring);
      if (Machine::lane() == 0) {
        const ExpertGroup& group = tile.group;
        Machine::store_shared(&shared_.told.tile[told_.stage],
                              Chunk{{word(group.expert), word(group.first), word(group.count), word(tile.row)}});
        shared_.told.ring.full[told_.stage].arrive();
      }
      told_.advance();
    }
    /// Visits the tiles that are told of.
    template <class Visit>
    TILEWISE_INLINE void for_each_tile(const Visit& visit) {
      for (;; told_.advance()) {
        told_.wait_full(shared_.told.ring);
        const Chunk chunk = Machine::template load_shared<Chunk>(&shared_.told.tile[told_.stage]);
        arrive_as_warp(shared_.told.ring.empty[told_.stage]);
        const auto number = [&](int i) TILEWISE_INLINE_LAMBDA {
          return uniform<Machine>(static_cast<int32_t>(chunk.word[i]));
        };
        const Tile tile{{number(0), number(1), number(2)}, number(3)};
        if (tile.group.expert == kNobody) break;
        visit(tile);
      }
    }

    TILEWISE_INLINE void load_steps(const Tile& tile, bool paired, int32_t rank, ProducerPlace<Pipe>& place) const {
      const int32_t halves = ceil_div(tile.group.count, kHalf);
      TILEWISE_NO_UNROLL
      for (int32_t step = 0; step < steps_; ++step, place.advance()) {
        Stage& stage = shared_.stage[place.stage()];
        Barrier<Machine>& full =
            place.begin(static_cast<int32_t>(sizeof stage.weights.bytes) + halves * kHalf * kChunkRowBytes);
        const int32_t k = step * kDepth;
        if (paired) {
          load_weights<C.cluster>(stage, full, tile, k, rank);
          for (int32_t first = 0; first < halves * kHalf; first += kBoxRows) load_rows<1>(stage, full, tile, k, first);
        } else {
          for (int half = 0; half < 2; ++half) load_weights<1>(stage, full, tile, k, half);
          for (int32_t half = 0; half < halves; ++half)
            load_rows<C.cluster>(stage, full, tile, k, half * kHalf + rank * kBoxRows);
        }
      }
    }
    /// A half of the weights, or rows of the group from one on: of this block, or of both of its cluster.
    template <int kOfBlocks>
    TILEWISE_INLINE void load_weights(Stage& stage, Barrier<Machine>& full, const Tile& tile, int32_t k,
                                      int32_t half) const {
      uint8_t* const to = stage.weights.bytes + half * kHalfWeights * kChunkRowBytes;
      const int32_t row = tile.row + half * kHalfWeights;
      if constexpr (C.down) {
        load_box<kOfBlocks>(to, p_.weights_map, full, k, row, tile.group.expert);
      } else {
        load_box<kOfBlocks>(to, p_.weights_map, full, k, 0, 0, row / 16, tile.group.expert);
      }
    }
    template <int kOfBlocks>
    TILEWISE_INLINE void load_rows(Stage& stage, Barrier<Machine>& full, const Tile& tile, int32_t k,
                                   int32_t first) const {
      load_box<kOfBlocks>(stage.rows.bytes + first * kChunkRowBytes, p_.rows_map, full, k, tile.group.first + first);
    }

    /// The mainloop: sums of 64 rows by kCount blocks of weights. While one warpgroup promotes, the other one's
    /// products run.
    template <int kCount>
    TILEWISE_INLINE void multiply(Sums (&sums)[kBlocks], ConsumerPlace<Pipe>& place, int32_t first_row,
                                  int32_t first_block) const {
      Sums part;
      TILEWISE_UNROLL
      for (int i = 0; i < kCount; ++i) sums[i].clear();
      TILEWISE_NO_UNROLL
      for (int32_t step = 0; step < steps_; ++step, place.advance()) {
        place.wait();
        Stage& stage = shared_.stage[place.stage()];
        TILEWISE_UNROLL
        for (int i = 0; i < kCount; ++i) {
          auto& weights = *reinterpret_cast<SwizzledTile<kScaledColumns, kDepth, 1>*>(
              stage.weights.bytes + (first_block + i) * kScaledColumns * kChunkRowBytes);
          pin_registers<Machine>(part);
          Machine::wgmma_fence();
          mma_ABt<Machine, kE4m3>(part.tile[0], stage.rows, first_row, weights, false);
          Machine::wgmma_commit();
          const ScaledFactors<Sums> factors = load_factors(place.stage(), first_row, first_block + i);
          Machine::template wgmma_wait<0>();
          pin_registers<Machine>(part);
          if (i == kCount - 1) place.release();
          if constexpr (C.down) {
            promote(sums[i], part, factors.of[0]);
          } else {
            promote_in_turn(sums[i], part, factors.of);
          }
        }
      }
    }
    /// Of this lane's rows: by gates, and by ups.
    TILEWISE_INLINE ScaledFactors<Sums> load_factors(uint32_t stage, int32_t first_row, int32_t block) const {
      const float* const row =
          &shared_.row_scale[stage][0].value[0] + first_row + warp_row<Machine>() + Machine::lane() / 4;
      const auto weight = Machine::template load_shared<FloatRun<2>>(&shared_.weight_scale[stage][block].of);
      ScaledFactors<Sums> factors;
      TILEWISE_UNROLL
      for (int slot = 0; slot < 2; ++slot) {
        const float scale = Machine::template load_shared<float>(row + 8 * slot);
        factors.of[0][slot] = scale * weight.value[0];
        factors.of[1][slot] = scale * weight.value[1];
      }
      return factors;
    }

    /// What a lane loads of a tile's scales.
    class LaneScales {
      static constexpr int kOwn = 4;

     public:
      struct Values {
        FloatRun<kOwn> row;
        FloatRun<2> weight;
      };

      TILEWISE_INLINE LaneScales(const MoeScaledParams& p, const Tile& tile)
          : row_step_(p.row_scales.column_stride), weight_step_(p.weight_scales.column_stride) {
        const int lane = Machine::lane();
        TILEWISE_UNROLL
        for (int i = 0; i < kOwn; ++i) {
          const int32_t row = kOwn * lane + i;
          row_[i] = nullptr;
          if (row >= tile.group.count) continue;
          int64_t index = tile.group.first + row;
          if constexpr (!C.down) index = Machine::load_global(p.sorted.pairs + index) / p.shape.top_k;
          row_[i] = p.row_scales.data + index * p.row_scales.row_stride;
        }
        const ExpertScales& w = p.weight_scales;
        TILEWISE_UNROLL
        for (int gate = 0; gate < 2; ++gate) {
          const int32_t first = C.down ? tile.row + lane * kScaledColumns
                                       : gate * w.gate_rows + (tile.row / 2 + lane * kHalf) * w.value_rows;
          // Of a block past the last one whatever lies there: nobody looks at its sums.
          const int64_t at = minimum(first / kScaledColumns, w.row_blocks - 1) * w.row_stride;
          weight_[gate] =
              lane < kBlocks ? static_cast<const uint8_t*>(w.data) + tile.group.expert * w.expert_stride + at : nullptr;
        }
      }

      /// Of a step; zeros of what is not there.
      TILEWISE_INLINE Values load(int32_t step, int32_t steps) const {
        Values values{};
        if (step >= steps) return values;
        TILEWISE_UNROLL
        for (int i = 0; i < kOwn; ++i) {
          if (row_[i] != nullptr) values.row.value[i] = Machine::load_global(row_[i] + step * row_step_);
        }
        TILEWISE_UNROLL
        for (int gate = 0; gate < 2; ++gate) {
          if (weight_[gate] == nullptr) continue;
          const uint8_t* const from = weight_[gate] + step * weight_step_;
          values.weight.value[gate] = Machine::load_global(reinterpret_cast<const float*>(from));
        }
        return values;
      }
      TILEWISE_INLINE void leave(const Values& values, FloatRun<kOwn> (&row_scale)[kRows / kOwn],
                                 WeightScale (&weight_scale)[kBlocks]) const {
        const int lane = Machine::lane();
        Machine::store_shared(&row_scale[lane], values.row);
        if (lane < kBlocks) Machine::store_shared(&weight_scale[lane].of, values.weight);
      }

     private:
      const float* row_[kOwn];
      const uint8_t* weight_[2];
      const int64_t row_step_, weight_step_;  // in floats; in bytes
    };

    const MoeScaledParams& p_;
    Shared& shared_;
    const int32_t steps_;
    RingPlace<Told::kSlots> told_;
  };
};

}  // namespace tilewise::device
