// Rows by expert times a matrix of it: the second half of an expert layer, and gradients of rows.
#pragma once

#include "device/moe/sums.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class ExpertRows {
  using Machine = typename Ops::Machine;
  static constexpr ProductConfig kProduct = C;
  using Multiply = ProductOf<Ops, kProduct>;
  using Sums = typename Multiply::Sums;

 public:
  using Params = ExpertRowsParams;
  using Shared = typename Multiply::Shared;

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const ExpertTile tile = expert_tile<Machine>(p.shape, p.routed, p.n_tiles, C.block_m);
    if (tile.is_empty()) return;
    const int64_t first_col = int64_t{tile.n_tile} * C.block_n;
    const auto columns = static_cast<int32_t>(minimum(p.columns - first_col, int64_t{C.block_n}));
    const OperandRows a = operand_rows<C.a>(p.a, 0, tile.rows.first, tile.rows.rows, p.routed.tokens);
    const OperandRows b = operand_rows<C.b>(p.b, tile.rows.group, first_col, columns);
    Sums sums(Machine::wave());
    sums.clear();
    Multiply::run(shared, a, b, 0, p.depth, sums);
    const ExpertFactors<Machine, C> factors(p.sums, p.routed, tile.rows);
    sums.for_each_run([&](int row, int col, FloatRun<Sums::kRun> run) {
      if (row >= tile.rows.rows || col >= columns) return;
      const float scale = factors.template of_row<false>(row);
      const float weight = C.weighs ? factors.weight(row) : 1.0f;
      TILEWISE_UNROLL
      for (int i = 0; i < Sums::kRun; ++i) {
        const int64_t column = first_col + minimum(col + i, columns - 1);
        float& x = run.value[i];
        x *= scale;
        if constexpr (C.column_scale) x *= factors.of_column(column);
        if constexpr (C.bias_type != kBiasNone) x += factors.bias(column);
        if constexpr (C.weighs) x *= weight;
      }
      store_run<Machine, C.out_type, C.vector_out != 0>(p.out, (tile.rows.first + row) * p.columns + first_col + col,
                                                        columns - col, run);
    });
  }
};

}  // namespace tilewise::device
