// Parts of dk and dv where several blocks share the queries that a block of keys sees: fp32 in the workspace, each
// part in a place of its own, so that the kernel that adds them up does so in one order.
#pragma once

#include "device/portable/key_block.h"
#include "device/portable/lane_sums.h"
#include "device/portable/store_rows.h"

namespace tilewise::device {

enum KeySide : int { kKeySide, kValueSide };

/// A block's part has kBlockRows x (head_dim + head_dim_v) floats: dk's, then dv's, each dealt out to the waves.
template <class Ops, KernelConfig C>
struct KeySumsLayout {
  static constexpr int kWaveRows = C.waves / C.wave_cols, kBlockRows = kWaveRows * C.rows_per_wave;
  using Part = ColumnPart<C.wave_cols>;
  template <KeySide kSide>
  using Sums = typename Ops::template Accumulators<C.rows_per_wave,
                                                   (kSide == kKeySide ? C.head_dim : C.head_dim_v) / C.wave_cols>;

  TILEWISE_INLINE static int first_row(int wave) { return wave % kWaveRows * C.rows_per_wave; }
  TILEWISE_INLINE static Part part(int wave) { return {wave / kWaveRows}; }

  /// The first float that a lane has of part `split`.
  template <KeySide kSide>
  TILEWISE_INLINE static float* of_lane(const GridParams& grid, const GridPlace& place, int32_t split, int wave,
                                        int lane) {
    const int64_t tile = (static_cast<int64_t>(place.batch) * grid.heads + place.head) * grid.num_tiles + place.tile;
    const int64_t side = kSide == kKeySide ? 0 : kBlockRows * C.head_dim;
    return grid.key_sums + (tile * grid.key_splits + split) * grid.key_sums_a_block + side +
           wave * LaneSums<Sums<kSide>>::kFloats + lane * 4;
  }
};

/// dk and dv of a tile of keys from their parts; the grid's splits are the two.
template <class Ops, KernelConfig C>
class StoreKeySumsKernel {
  using Machine = typename Ops::Machine;
  using Layout = KeySumsLayout<Ops, C>;

 public:
  union Shared {
    SharedTile<Layout::kBlockRows, C.head_dim> keys;
    SharedTile<Layout::kBlockRows, C.head_dim_v> values;
  };

  TILEWISE_INLINE static void run(const KernelParams& params, Shared& shared) {
    const AttentionParams& p = params.call;
    const GridPlace place = grid_place<Machine>(params.grid);
    const Sequence sequence = sequence_at<C>(p, place.batch);
    if (static_cast<int64_t>(place.tile) * Layout::kBlockRows >= sequence.all_k) return;
    const KeyBlock<C> block(p, sequence, place, Layout::kBlockRows);
    if (place.split == kKeySide) {
      if (p.dk.data) store<kKeySide>(shared.keys, params.grid, block, p.dk, p.softmax_scale, p.head_dim);
    } else {
      if (p.dv.data) store<kValueSide>(shared.values, params.grid, block, p.dv, 1.0f, p.head_dim_v);
    }
  }

 private:
  template <KeySide kSide, class Tile>
  TILEWISE_INLINE static void store(Tile& tile, const GridParams& grid, const KeyBlock<C>& block, const Tensor4& to,
                                    float scale, int64_t cols) {
    using Sums = typename Layout::template Sums<kSide>;
    const int wave = Machine::wave(), lane = Machine::lane();
    Sums sums;
    sums.clear();
    for (int32_t split = 0; split < grid.key_splits; ++split) {
      LaneSums<Sums>::template add<Machine>(sums,
                                            Layout::template of_lane<kSide>(grid, block.place, split, wave, lane));
    }
    sums.scale_used_rows(lane, scale, [&](int row) { return block.used(Layout::first_row(wave) + row); });
    write_part_rows<Ops, C, Layout::kBlockRows>(
        tile, sums, Layout::first_row(wave), Layout::part(wave), cols,
        [&](int row) -> uint16_t* { return block.address_of_gradient(to, row); });
  }
};

}  // namespace tilewise::device
