// Gradients of weights, biases and topk_weights: sums over the rows of each expert, or of a pair.
#pragma once

#include "device/moe/combine.h"
#include "device/moe/sums.h"
#include "device/product/gradients.h"

namespace tilewise::device {

/// A block for each tile of an expert's weights. Both operands are summed along their columns.
template <TileOps Ops, auto C>
class ExpertDw {
  using Machine = typename Ops::Machine;
  using Gradients = WeightGradients<Ops, C>;

 public:
  using Params = ExpertDwParams;
  using Shared = typename Gradients::Shared;

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const WeightTile tile = weight_tile<Machine, C>(p);
    const int64_t begin = Machine::load_global(p.routed.offsets + tile.expert);
    const int64_t end = Machine::load_global(p.routed.offsets + tile.expert + 1);
    Gradients::run(shared, tile, operand_rows<C.a>(p.a, 0, tile.first_row, tile.rows, p.routed.tokens),
                   operand_rows<C.b>(p.b, 0, tile.first_col, tile.columns, p.routed.tokens), begin, end, p.out,
                   p.expert_stride, p.row_stride);
  }
};

/// A block for each stretch of an expert's columns.
template <TileOps Ops, auto C>
class ExpertDbias {
  using Machine = typename Ops::Machine;
  using Sums = ColumnSums<Machine, C>;

 public:
  using Params = ExpertDbiasParams;
  using Shared = typename Sums::Shared;

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const int32_t block = Machine::block(), expert = block / p.n_tiles;
    const int64_t column = int64_t{block - expert * p.n_tiles} * Machine::kLanes + Machine::lane();
    Sums::run(shared, column < p.columns, Machine::load_global(p.routed.offsets + expert),
              Machine::load_global(p.routed.offsets + expert + 1), p.out, expert * p.expert_stride + column * p.stride,
              [&](int32_t row) {
                const int64_t from = C.gathered ? Machine::load_global(p.routed.tokens + row) : row;
                const float x = load_number<Machine, C.rows_type>(p.from, from * p.from_stride + column);
                return C.weighs ? x * Machine::load_global(p.routed.weights + row) : x;
              });
  }
};

/// A wave has a pair. Of one that is nobody's it is 0.
template <TileOps Ops, auto C>
class ExpertDweights {
  using Machine = typename Ops::Machine;

 public:
  using Params = ExpertDweightsParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const int32_t pair = Machine::block() * C.waves + Machine::wave(), token = pair / p.shape.top_k;
    if (pair >= p.shape.pairs()) return;
    const int32_t row = Machine::load_global(p.routed.rows + pair);
    float sum = 0.0f;
    if (row != kNobody) {
      const float* const terms = p.terms + int64_t{row} * p.shape.intermediate;
      for (int32_t i = Machine::lane(); i < p.shape.intermediate; i += Machine::kLanes)
        sum += Machine::load_global(terms + i);
      if (p.bias.data != nullptr) sum += of_bias(p, row, token);
    }
    sum = sum_over_lanes<Machine>(sum);
    if (Machine::lane() != 0) return;
    const int64_t at = token * p.token_stride + (pair - token * p.shape.top_k) * p.slot_stride;
    const FloatRun<1> one{{sum}};
    if (p.out_type == kBiasF32) store_run<Machine, kNumberF32, false>(p.out, at, 1, one);
    if (p.out_type == kBiasBf16) store_run<Machine, kNumberBf16, false>(p.out, at, 1, one);
    if (p.out_type == kBiasF16) store_run<Machine, kNumberF16, false>(p.out, at, 1, one);
  }

 private:
  /// This lane's share of the product of dout and the bias of the row's expert: the one behind whose rows it stands.
  TILEWISE_INLINE static float of_bias(const Params& p, int32_t row, int32_t token) {
    int32_t expert = 0;
    for (int32_t e = Machine::lane(); e < p.shape.num_experts; e += Machine::kLanes)
      if (Machine::load_global(p.routed.offsets + e + 1) <= row) ++expert;
    expert = sum_of_wave<Machine>(expert);
    float sum = 0.0f;
    for (int32_t n = Machine::lane(); n < p.shape.hidden; n += Machine::kLanes) {
      sum += load_number<Machine>(p.dout, token * p.dout_stride + n, p.dout_type) *
             load_number<Machine>(p.bias.data, expert * p.bias.expert_stride + n * p.bias.stride, p.bias_type);
    }
    return sum;
  }
};

}  // namespace tilewise::device
