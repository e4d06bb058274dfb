// out = activation(x w^T + bias) of 16-bit elements whose rows are by expert, with sides swapped: w is M, 128 rows a
// block and 256 a cluster, and an expert's rows are N. A warp loads by TMA, two warpgroups multiply, two warps store.
// Of GemmConfig's tiles block_m counts rows of x, as ever.
#pragma once

#include "device/gemm/sm90/finish.h"
#include "device/sm90/contract.h"
#include "device/sm90/roles.h"
#include "device/sm90/swapped_product.h"

namespace tilewise::device {

template <Sm90TileOps Ops, GemmConfig C>
class Sm90GroupedGemm {
  using Machine = typename Ops::Machine;
  static constexpr int kColumnStep = 16, kHeldExperts = kMostGroupedExperts / 32;
  using Product = SwappedProduct<Ops, SwappedShape{C.type, C.block_m, C.stages, C.cluster, kColumnStep, C.w_mn_major}>;
  using Pipe = typename Product::Pipe;
  using Sums = typename Product::Sums;
  using Groups = GroupedRows<Machine, kHeldExperts, C.block_m, kColumnStep>;
  static constexpr int kConsumers = Product::kConsumers;
  static_assert(C.grouped && C.shares_x && C.block_n == Product::kBlockM);
  struct Tile {
    ExpertGroup group;
    int32_t row;  // of w, the block's first
  };

 public:
  using Params = GroupedGemmParams;
  struct Shared {
    typename Product::Stage stage[C.stages];
    typename Product::Stored stored[kConsumers];
    Pipe pipe;
    typename Product::StoredRing to_be_stored[kConsumers];
  };

  TILEWISE_INLINE static void run(const GroupedGemmParams& p, Shared& shared) {
    run_kernel<Machine, kConsumers, C.cluster>(
        [&]() TILEWISE_INLINE_LAMBDA {
          shared.pipe.init(4 * kConsumers);
          for (auto& ring : shared.to_be_stored) ring.init(4, 1);
          prefetch_maps<Machine>(p.gemm.x_map, p.gemm.w_map, p.gemm.out_map);
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
    TILEWISE_INLINE Role(const GroupedGemmParams& p, Shared& shared)
        : p_(p.gemm),
          more_x_maps_(p.more_x_maps),
          shared_(shared),
          groups_(p.gemm.offsets, p.gemm.num_experts),
          rank_(C.cluster > 1 ? Machine::rank_in_cluster() : 0) {}

    TILEWISE_INLINE void load() {
      ProducerPlace<Pipe> place(shared_.pipe);
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        if (Machine::lane() == 0) load_steps(tile, place);
        Machine::wave_sync();
      });
    }

    /// Stores what a warpgroup has left.
    TILEWISE_INLINE void store(int32_t warpgroup) {
      const StoredRows out{p_.out_map, static_cast<uint16_t*>(p_.out), p_.out_stride, p_.n};
      RingPlace<1> place;
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        Product::take_turns(Product::turns_of(tile.group.count), shared_.to_be_stored[warpgroup], place,
                            [&](int32_t turn) TILEWISE_INLINE_LAMBDA {
                              Product::store_rows(shared_.stored[warpgroup], tile.group, out,
                                                  turn * Product::kStoredRows, tile.row + 64 * warpgroup);
                            });
      });
      if (Machine::lane() == 0) Machine::wait_stores();
    }

    TILEWISE_INLINE void consume(int32_t warpgroup) {
      ConsumerPlace<Pipe> place(shared_.pipe);
      RingPlace<1> stored;
      Sums sums;
      for_each_tile([&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
        Product::multiply(sums, place, shared_.stage, warpgroup, p_.steps, tile.group.count);
        const int32_t row = tile.row + warpgroup * 64 + warp_row<Machine>() + Machine::lane() / 4;
        float bias[2] = {};
        if constexpr (C.biases) {
          for (int slot = 0; slot < 2; ++slot) bias[slot] = load_bias<Machine>(p_, tile.group.expert, row + 8 * slot);
        }
        Product::leave(tile.group.count, shared_.stored[warpgroup], shared_.to_be_stored[warpgroup], stored,
                       [&](int c, int slot) TILEWISE_INLINE_LAMBDA {
                         const float* const x = &sums.tile[0][c][2 * slot];
                         return Machine::template pack<C.out_type>(
                             activate<Machine, C.kind()>(x[0] + bias[slot], 0.0f),
                             activate<Machine, C.kind()>(x[1] + bias[slot], 0.0f));
                       });
      });
      clear_rows_of_nobody<Machine, C>(p_);
    }

   private:
    /// Cluster c of n has tiles c, c + n, ...
    template <class Visit>
    TILEWISE_INLINE void for_each_tile(const Visit& visit) const {
      const int32_t across = ceil_div(p_.n, Product::kBlockM * C.cluster), all = groups_.num_groups() * across;
      for (int32_t i = Machine::block() / C.cluster; i < all; i += Machine::blocks() / C.cluster) {
        const GroupTile tile = groups_.place(i, across);
        visit(Tile{tile.group, (tile.index * C.cluster + rank_) * Product::kBlockM});
      }
    }
    TILEWISE_INLINE void load_steps(const Tile& tile, ProducerPlace<Pipe>& place) const {
      TILEWISE_NO_UNROLL
      for (int32_t step = 0; step < p_.steps; ++step, place.advance()) {
        typename Product::Stage& stage = shared_.stage[place.stage()];
        Barrier<Machine>& full = place.begin(Product::kWeightBytes + Product::row_bytes_of(tile.group));
        const int32_t k = step * Product::kDepth;
        Product::load_weights(stage, full, p_.w_map, tile.row, k, tile.group.expert);
        Product::load_rows(
            stage, full,
            [&](int box)
                TILEWISE_INLINE_LAMBDA -> const TensorMap& { return box == 0 ? p_.x_map : more_x_maps_[box - 1]; },
            tile.group, rank_, k);
      }
    }

    const GemmParams& p_;
    const TensorMap (&more_x_maps_)[kRowBoxes - 1];
    Shared& shared_;
    const Groups groups_;
    const int32_t rank_;
  };
};

}  // namespace tilewise::device
