// Gradients of weights and biases: sums over the rows of each group, in one order. Those of rows are LinearProducts.
#pragma once

#include "device/linear/epilogue.h"
#include "device/product/product.h"

namespace tilewise::device {

/// A block for each tile of an expert's weights. Both operands are summed along their columns.
template <TileOps Ops, auto C>
class LinearDw {
  using Machine = typename Ops::Machine;
  static constexpr ProductConfig kProduct = C;
  static_assert(kProduct.a.transposed && kProduct.b.transposed);
  using Multiply = Product<Ops, kProduct>;
  using Sums = typename Multiply::Sums;

 public:
  using Params = LinearDwParams;
  using Shared = typename Multiply::Shared;

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const int32_t block = Machine::block(), m = block / p.n_tiles, expert = m / p.m_tiles;
    const int64_t first_row = int64_t{m - expert * p.m_tiles} * C.block_m;
    const int64_t first_col = int64_t{block - m * p.n_tiles} * C.block_n;
    const auto rows = static_cast<int32_t>(minimum(p.rows - first_row, int64_t{C.block_m}));
    const auto columns = static_cast<int32_t>(minimum(p.columns - first_col, int64_t{C.block_n}));
    const GroupRows tokens = Groups<Machine, C.groups>(p.groups, p.tokens).group(expert);
    Sums sums(Machine::wave());
    sums.clear();
    Multiply::run(shared, operand_rows<C.a>(p.a, 0, first_row, rows), operand_rows<C.b>(p.b, 0, first_col, columns),
                  tokens.first, tokens.first + tokens.rows, sums);
    sums.for_each_run([&](int row, int col, const FloatRun<Sums::kRun>& run) {
      if (row >= rows) return;
      store_run<Machine, C.out_type, C.vector_out != 0>(
          p.out.data, expert * p.out.expert_stride + (first_row + row) * p.out.row_stride + first_col + col,
          columns - col, run);
    });
  }
};

/// A block for each stretch of an expert's columns.
template <TileOps Ops, auto C>
class LinearDbias {
  using Machine = typename Ops::Machine;
  static constexpr int kLanes = Machine::kLanes;

 public:
  using Params = LinearDbiasParams;
  struct Shared {
    float sum[C.waves][kLanes];
  };

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const int32_t block = Machine::block(), expert = block / p.n_tiles;
    const int wave = Machine::wave(), lane = Machine::lane();
    const int64_t column = int64_t{block - expert * p.n_tiles} * kLanes + lane;
    const GroupRows tokens = Groups<Machine, C.groups>(p.groups, p.tokens).group(expert);
    const bool is = column < p.columns;
    float sum = 0.0f;
    for (int32_t row = wave; is && row < tokens.rows; row += C.waves) {
      sum += load_number<Machine, C.dout_type>(p.dout.data, (tokens.first + row) * p.dout.row_stride + column);
    }
    Machine::store_shared(&shared.sum[wave][lane], sum);
    Machine::barrier();
    if (wave != 0 || !is) return;
    FloatRun<1> all{};
    TILEWISE_UNROLL
    for (int part = 0; part < C.waves; ++part)
      all.value[0] += Machine::template load_shared<float>(&shared.sum[part][lane]);
    store_run<Machine, C.out_type, false>(p.out, expert * p.expert_stride + column * p.stride, 1, all);
  }
};

}  // namespace tilewise::device
