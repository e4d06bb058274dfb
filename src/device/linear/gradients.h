// Gradients of weights and biases. Those of rows are LinearProducts.
#pragma once

#include "device/linear/epilogue.h"
#include "device/product/gradients.h"

namespace tilewise::device {

/// A block for each tile of an expert's weights. Both operands are summed along their columns.
template <TileOps Ops, auto C>
class LinearDw {
  using Machine = typename Ops::Machine;
  using Gradients = WeightGradients<Ops, C>;

 public:
  using Params = LinearDwParams;
  using Shared = typename Gradients::Shared;

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const WeightTile tile = weight_tile<Machine, C>(p);
    const GroupRows tokens = Groups<Machine, C.groups>(p.groups, p.tokens).group(tile.expert);
    Gradients::run(shared, tile, operand_rows<C.a>(p.a, 0, tile.first_row, tile.rows),
                   operand_rows<C.b>(p.b, 0, tile.first_col, tile.columns), tokens.first, tokens.first + tokens.rows,
                   p.out.data, p.out.expert_stride, p.out.row_stride);
  }
};

/// A block for each stretch of an expert's columns.
template <TileOps Ops, auto C>
class LinearDbias {
  using Machine = typename Ops::Machine;
  using Sums = ColumnSums<Machine, C>;

 public:
  using Params = LinearDbiasParams;
  using Shared = typename Sums::Shared;

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const int32_t block = Machine::block(), expert = block / p.n_tiles;
    const int64_t column = int64_t{block - expert * p.n_tiles} * Machine::kLanes + Machine::lane();
    const GroupRows tokens = Groups<Machine, C.groups>(p.groups, p.tokens).group(expert);
    Sums::run(shared, column < p.columns, int32_t{0}, tokens.rows, p.out, expert * p.expert_stride + column * p.stride,
              [&](int32_t row) {
                return load_number<Machine, C.dout_type>(p.dout.data,
                                                         (tokens.first + row) * p.dout.row_stride + column);
              });
  }
};

}  // namespace tilewise::device
