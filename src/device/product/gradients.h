// Gradients of weights and biases, which are sums over the rows of an expert, in one order.
#pragma once

#include "device/product/epilogue.h"
#include "device/product/product.h"

namespace tilewise::device {

/// The tile of an expert's weights that a block has: m_tiles by n_tiles of each.
struct WeightTile {
  int32_t expert, rows, columns;
  int64_t first_row, first_col;
};

template <class Machine, auto C, class Params>
TILEWISE_INLINE WeightTile weight_tile(const Params& p) {
  const int32_t block = Machine::block(), m = block / p.n_tiles;
  WeightTile tile{};
  tile.expert = m / p.m_tiles;
  tile.first_row = int64_t{m - tile.expert * p.m_tiles} * C.block_m;
  tile.first_col = int64_t{block - m * p.n_tiles} * C.block_n;
  tile.rows = static_cast<int32_t>(minimum(p.rows - tile.first_row, int64_t{C.block_m}));
  tile.columns = static_cast<int32_t>(minimum(p.columns - tile.first_col, int64_t{C.block_n}));
  return tile;
}

/// out[tile] = aᵀ b, summed over the rows from begin to end; out is the expert's.
template <TileOps Ops, auto C>
struct WeightGradients {
  static constexpr ProductConfig kProduct = C;
  static_assert(kProduct.a.transposed && kProduct.b.transposed);
  using Multiply = Product<Ops, kProduct>;
  using Shared = typename Multiply::Shared;

  TILEWISE_INLINE static void run(Shared& shared, const WeightTile& tile, const OperandRows& a, const OperandRows& b,
                                  int64_t begin, int64_t end, void* out, int64_t expert_stride, int64_t row_stride) {
    using Machine = typename Ops::Machine;
    using Sums = typename Multiply::Sums;
    Sums sums(Machine::wave());
    sums.clear();
    Multiply::run(shared, a, b, begin, end, sums);
    sums.for_each_run([&](int row, int col, const FloatRun<Sums::kRun>& run) {
      if (row >= tile.rows) return;
      const int64_t at = tile.expert * expert_stride + (tile.first_row + row) * row_stride + tile.first_col + col;
      store_run<Machine, C.out_type, C.vector_out != 0>(out, at, tile.columns - col, run);
    });
  }
};

/// out[column] = the sum of element(row) over the rows from begin to end. A lane has a column, waves share the rows.
template <class Machine, auto C>
struct ColumnSums {
  struct Shared {
    float sum[C.waves][Machine::kLanes];
  };

  /// `is`: whether the lane's column is one; `at`: where it is in out.
  template <class Index, class Element>
  TILEWISE_INLINE static void run(Shared& shared, bool is, Index begin, Index end, void* out, int64_t at,
                                  const Element& element) {
    const int wave = Machine::wave(), lane = Machine::lane();
    float sum = 0.0f;
    for (Index row = begin + wave; is && row < end; row += C.waves) sum += element(row);
    Machine::store_shared(&shared.sum[wave][lane], sum);
    Machine::barrier();
    if (wave != 0 || !is) return;
    FloatRun<1> all{};
    TILEWISE_UNROLL
    for (int part = 0; part < C.waves; ++part)
      all.value[0] += Machine::template load_shared<float>(&shared.sum[part][lane]);
    store_run<Machine, C.out_type, false>(out, at, 1, all);
  }
};

}  // namespace tilewise::device
