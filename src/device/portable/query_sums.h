// Where the products that make up dq are added up, fp32 in the workspace, and the kernel that rounds the
// sums into dq.
#pragma once

#include "device/portable/block_rows.h"
#include "device/portable/lane_sums.h"
#include "device/portable/store_rows.h"

namespace tilewise::device {

/// A tile of queries has C.tile_cols x C.head_dim floats, dealt out to C.waves waves.
template <class Ops, KernelConfig C>
struct QuerySumsLayout {
  static constexpr int kRows = query_sum_rows(C), kWaveRows = C.tile_cols / kRows, kParts = C.waves / kWaveRows;
  static_assert(C.waves % kWaveRows == 0 && C.head_dim % (16 * kParts) == 0, "waves have equal shares");
  using Sums = typename Ops::template Accumulators<kRows, C.head_dim / kParts>;
  using Part = ColumnPart<kParts>;

  TILEWISE_INLINE static int first_row(int wave) { return wave % kWaveRows * kRows; }
  TILEWISE_INLINE static Part part(int wave) { return {wave / kWaveRows}; }

  /// The first float that a lane has of a tile.
  TILEWISE_INLINE static float* of_lane(const AttentionParams& p, const GridParams& grid, int64_t batch, int64_t head,
                                        int64_t tile, int wave, int lane) {
    return grid.query_sums + (batch * p.num_heads_q + head) * grid.query_sums_a_head +
           tile * (C.tile_cols * C.head_dim) + wave * LaneSums<Sums>::kFloats + lane * 4;
  }
};

template <class Ops, KernelConfig C>
class StoreQuerySumsKernel {
  using Machine = typename Ops::Machine;
  using Layout = QuerySumsLayout<Ops, C>;
  using Sums = typename Layout::Sums;

 public:
  struct Shared {
    SharedTile<C.tile_cols, C.head_dim> out;
  };

  TILEWISE_INLINE static void run(const KernelParams& params, Shared& shared) {
    const AttentionParams& p = params.call;
    const GridPlace place = grid_place<Machine>(params.grid);
    const Sequence sequence = sequence_at<C>(p, place.batch);
    const BlockRows<C> rows(p, sequence, place, C.tile_cols);
    if (rows.first_row >= rows.total_rows) return;
    const int wave = Machine::wave(), lane = Machine::lane();
    const float* const from = Layout::of_lane(p, params.grid, place.batch, place.head, place.tile, wave, lane);
    Sums sums;
    sums.clear();
    LaneSums<Sums>::template add<Machine>(sums, from);
    // Hidden keys of NaN, times 0, don't reach a row that sees nothing.
    sums.scale_used_rows(lane, p.softmax_scale, [&](int row) {
      return sees_something<Machine>(p, sequence, place.batch, place.head,
                                     rows.first_row + Layout::first_row(wave) + row);
    });
    write_part_rows<Ops, C, C.tile_cols>(shared.out, sums, Layout::first_row(wave), Layout::part(wave), p.head_dim,
                                         [&](int row) { return address_of_result(p.dq, rows, sequence, row); });
  }
};

}  // namespace tilewise::device
