// What Hopper's kernels of expert layers' backward pass are told: plain data, shape beside every pointer.
#pragma once

#include "device/gemm/sm90/params.h"
#include "device/moe/sm90/params.h"
#include "device/sm90/tile_matrix.h"

namespace tilewise::device {

/// Rows stand in the order of sorted pairs. The launch is that of the product.
struct MoeSlopesParams {
  GemmParams gemm;           // x_map: [pairs, hidden]; w_map: as MoeDecodeParams has it, of 256 rows; out: gradients of
                             // the product times what the input weighs, [pairs, gate_up's rows], not by a map
  const float* row_weights;  // [pairs]
  RowTensor h;               // [pairs, intermediate]: h's gradient before its weight; then h, times what it weighs
  float* terms;              // [pairs, num_terms]: by tiles across, what the gradient of the row's weight is the sum of
  ExpertBias gate_up_bias;
  ActivationNumbers numbers;
  int32_t intermediate, num_terms;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("gemm", p.gemm), visit("row_weights", p.row_weights), visit("h", p.h), visit("terms", p.terms);
    visit("gate_up_bias", p.gate_up_bias), visit("numbers", p.numbers), visit("intermediate", p.intermediate);
    visit("num_terms", p.num_terms);
  }
};

/// Rows stand in the order of sorted pairs. Blocks of 32 * warps threads, as many as fill the machine.
struct MoeSavedSlopesParams {
  MoeShape shape;
  const int32_t* offsets;    // [num_experts + 1]: where each expert's rows begin
  const float* row_weights;  // [pairs]
  RowTensor sums;            // [pairs, 2 intermediate, or intermediate]: gates, then ups
  RowTensor h;               // as MoeSlopesParams has it
  RowTensor products;        // [pairs, gate_up's rows]: gradients of the product times what the input weighs
  float* terms;              // [pairs]: the gradient of the row's weight
  ExpertBias gate_up_bias;
  ActivationNumbers numbers;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("offsets", p.offsets), visit("row_weights", p.row_weights), visit("sums", p.sums);
    visit("h", p.h), visit("products", p.products), visit("terms", p.terms), visit("gate_up_bias", p.gate_up_bias);
    visit("numbers", p.numbers);
  }
};

/// Blocks of 32 * warps threads, as many as fill the machine.
struct MoeDweightsParams {
  MoeShape shape;
  PairTensor topk_ids;
  SortedPairs sorted;
  const float* terms;  // [pairs, num_terms]
  RowTensor dout;      // [pairs, hidden], in the order of sorted pairs, where there is a bias
  ExpertBias down_bias;
  void* out;  // [tokens, top_k] of BiasType out_type
  int64_t token_stride, slot_stride;
  int32_t out_type, num_terms;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("topk_ids", p.topk_ids), visit("sorted", p.sorted), visit("terms", p.terms);
    visit("dout", p.dout), visit("down_bias", p.down_bias), visit("out", p.out), visit("token_stride", p.token_stride);
    visit("slot_stride", p.slot_stride), visit("out_type", p.out_type), visit("num_terms", p.num_terms);
  }
};

/// out[e, r, c] = the sum over rows t of expert e of a[t, r] b[t, c]. The launch: clusters of blocks, one for each
/// multiprocessor.
struct MoeDwParams {
  TensorMap a_map, b_map;  // [pairs, rows] and [pairs, columns], boxes of depth, and of depth / cluster, x 64
  TensorMap out_map;       // [num_experts, rows, columns], boxes of 1 x 16 x 64
  TileMatrix grid;         // clusters' tiles of an expert
  const int32_t* offsets;  // [num_experts + 1]: where each expert's rows begin
  void* out;               // what the map is of
  int64_t expert_stride, row_stride;
  int32_t num_experts, rows, columns, of_down;  // of_down: which weights they are of

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("a_map", p.a_map), visit("b_map", p.b_map), visit("out_map", p.out_map), visit("grid", p.grid);
    visit("offsets", p.offsets), visit("out", p.out), visit("expert_stride", p.expert_stride);
    visit("row_stride", p.row_stride), visit("num_experts", p.num_experts), visit("rows", p.rows);
    visit("columns", p.columns), visit("of_down", p.of_down);
  }
};

}  // namespace tilewise::device
