// Rows times the weights of their group: a block for each tile of out, and each part of the depth.
#pragma once

#include "device/linear/epilogue.h"
#include "device/product/product_of.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class LinearProduct {
  using Machine = typename Ops::Machine;
  static constexpr ProductConfig kProduct = C;
  using Multiply = ProductOf<Ops, kProduct>;
  using Sums = typename Multiply::Sums;

 public:
  using Params = LinearProductParams;
  using Shared = typename Multiply::Shared;

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const LinearEpilogueParams& e = p.epilogue;
    const LinearPlace place = linear_place<Machine>(e.grid);
    const GroupRows rows = Groups<Machine, C.groups>(e.groups, e.rows).tile(place.m_tile, C.block_m);
    if (rows.rows <= 0) return;
    const int64_t first_col = int64_t{place.n_tile} * C.block_n;
    const LinearEpilogue<Machine, C> epilogue(e, rows, first_col);
    Sums sums(Machine::wave());
    sums.clear();
    if (rows.group < 0) {
      if (place.split > 0) return;
      sums.for_each_run(
          [&](int row, int col, const FloatRun<Sums::kRun>&) { epilogue.template clear<Sums::kRun>(row, col); });
      return;
    }
    const auto columns = static_cast<int32_t>(minimum(e.columns - first_col, int64_t{C.block_n}));
    const OperandRows a = operand_rows<C.a>(p.a, 0, rows.first, rows.rows);
    const OperandRows b = operand_rows<C.b>(p.b, rows.group, first_col, columns);
    const int64_t begin = C.split ? place.split * e.grid.depth_part : 0;
    const int64_t end = C.split ? minimum(p.depth, begin + e.grid.depth_part) : p.depth;
    Multiply::run(shared, a, b, begin, end, sums);
    sums.for_each_run([&](int row, int col, const FloatRun<Sums::kRun>& run) {
      if constexpr (C.split) {
        epilogue.keep(place.split, row, col, run);
      } else {
        epilogue.write(row, col, run);
      }
    });
  }
};

/// From the parts' sums to out: a block for each tile, a lane for each run of columns.
template <TileOps Ops, auto C>
class LinearCombine {
  using Machine = typename Ops::Machine;
  static constexpr int kRun = 4, kRowRuns = C.block_n / kRun;

 public:
  using Params = LinearEpilogueParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const LinearPlace place = linear_place<Machine>(p.grid);
    const GroupRows rows = Groups<Machine, C.groups>(p.groups, p.rows).tile(place.m_tile, C.block_m);
    if (rows.rows <= 0 || rows.group < 0) return;
    const LinearEpilogue<Machine, C> epilogue(p, rows, int64_t{place.n_tile} * C.block_n);
    for (int unit = Machine::thread(); unit < rows.rows * kRowRuns; unit += C.waves * Machine::kLanes) {
      const int row = unit / kRowRuns, col = unit % kRowRuns * kRun;
      epilogue.write(row, col, epilogue.template kept<kRun>(row, col));
    }
  }
};

}  // namespace tilewise::device
