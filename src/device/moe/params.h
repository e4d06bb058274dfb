// The parameters of each portable kernel of expert layers: plain data, shape beside every pointer. The host's table of
// their pointers stands in backends/portable/moe/kernels.hpp.
#pragma once

#include "device/moe/shape.h"
#include "device/product/params.h"
#include "device/tile/activate.h"

namespace tilewise::device {

/// Pairs by experts, in their order within each, as the sorting kernel leaves them: rows of what lies between a
/// token's x and its out. Those of pairs that are nobody's are left over at the end.
struct RoutedRows {
  int32_t* offsets;  // [num_experts + 1]: where each expert's begin
  int32_t* tokens;   // [tokens * top_k]: of each row
  float* weights;    // likewise
  int32_t* rows;     // [tokens * top_k]: the row of each pair, or kNobody

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("offsets", p.offsets), visit("tokens", p.tokens), visit("weights", p.weights), visit("rows", p.rows);
  }
};

/// What an operand or a result is, for the host's table of pointers.
enum ExpertRole : int32_t {
  kExpertNone = 0,
  kExpertX = 1,
  kExpertGateUp = 2,
  kExpertGateUpBack = 3,  // rows are hidden
  kExpertDown = 4,
  kExpertDownBack = 5,  // rows are intermediate
  kExpertDout = 6,
  kExpertDgateUp = 7,
  kExpertDdown = 8,
  kExpertDgateUpBias = 9,
  kExpertDdownBias = 10,
  kExpertOut = 11,
  kExpertDx = 12,
  // In the workspace.
  kExpertH = 13,          // what the activation comes to
  kExpertHElements = 14,  // the same quantised
  kExpertParts = 15,      // of out
  kExpertDh = 16,
  kExpertDproducts = 17,
  kExpertDxParts = 18
};

struct ExpertSortParams {
  MoeShape shape;
  PairTensor topk_ids, topk_weights;
  RoutedRows routed;
  int32_t* counts;         // [chunks, num_experts]: what the first launch tells the second one
  int32_t chunks, unused;  // chunks: the blocks

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("topk_ids", p.topk_ids), visit("topk_weights", p.topk_weights);
    visit("routed", p.routed), visit("counts", p.counts), visit("chunks", p.chunks), visit("unused", p.unused);
  }
};

/// Factors of whole sums, and what is added to them: by row of a, by row of b, by expert.
struct ExpertSums {
  ProductVector row_scale, column_scale, expert_scale, bias;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("row_scale", p.row_scale), visit("column_scale", p.column_scale), visit("expert_scale", p.expert_scale);
    visit("bias", p.bias);
  }
};

/// The grid: n_tiles of gate_up's rows for each tile of rows.
struct ExpertUpParams {
  MoeShape shape;
  RoutedRows routed;
  ProductOperand a, b;
  ExpertSums sums;
  ActivationNumbers numbers;
  void* h;          // [rows, intermediate]
  float* dh;        // the same of gradients, before topk_weights; then terms whose sum is that of the weight
  void* dproducts;  // [rows, gate_up's rows]
  int32_t n_tiles, h_type, gate_up_rows, gradient;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("routed", p.routed), visit("a", p.a), visit("b", p.b), visit("sums", p.sums);
    visit("numbers", p.numbers), visit("h", p.h), visit("dh", p.dh), visit("dproducts", p.dproducts);
    visit("n_tiles", p.n_tiles), visit("h_type", p.h_type), visit("gate_up_rows", p.gate_up_rows);
    visit("gradient", p.gradient);
  }
};

/// out[row, column]: the grid is n_tiles of columns for each tile of rows.
struct ExpertRowsParams {
  MoeShape shape;
  RoutedRows routed;
  ProductOperand a, b;
  ExpertSums sums;
  int64_t depth, columns;
  void* out;  // [rows, columns]
  int32_t n_tiles, out_type, out_role, unused;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("routed", p.routed), visit("a", p.a), visit("b", p.b), visit("sums", p.sums);
    visit("depth", p.depth), visit("columns", p.columns), visit("out", p.out), visit("n_tiles", p.n_tiles);
    visit("out_type", p.out_type), visit("out_role", p.out_role), visit("unused", p.unused);
  }
};

/// out[expert, r, c] = the sum over the expert's rows t of a[t, r] b[t, c]. The grid: m_tiles by n_tiles of each.
struct ExpertDwParams {
  MoeShape shape;
  RoutedRows routed;
  ProductOperand a, b;
  int64_t rows, columns;
  void* out;
  int64_t expert_stride, row_stride;
  int32_t m_tiles, n_tiles, out_type, out_role;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("routed", p.routed), visit("a", p.a), visit("b", p.b), visit("rows", p.rows);
    visit("columns", p.columns), visit("out", p.out), visit("expert_stride", p.expert_stride);
    visit("row_stride", p.row_stride), visit("m_tiles", p.m_tiles), visit("n_tiles", p.n_tiles);
    visit("out_type", p.out_type), visit("out_role", p.out_role);
  }
};

/// out[expert, c] = the sum over the expert's rows of from[row, c]. The grid: n_tiles of columns of each expert.
struct ExpertDbiasParams {
  MoeShape shape;
  RoutedRows routed;
  const void* from;
  int64_t from_stride, columns;
  void* out;
  int64_t expert_stride, stride;
  int32_t n_tiles, from_type, from_role, out_type, out_role, unused;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("routed", p.routed), visit("from", p.from), visit("from_stride", p.from_stride);
    visit("columns", p.columns), visit("out", p.out), visit("expert_stride", p.expert_stride);
    visit("stride", p.stride), visit("n_tiles", p.n_tiles), visit("from_type", p.from_type);
    visit("from_role", p.from_role), visit("out_type", p.out_type), visit("out_role", p.out_role);
    visit("unused", p.unused);
  }
};

/// dtopk_weights[pair] = the sum of the pair's terms, and of products of its dout with its expert's bias.
struct ExpertDweightsParams {
  MoeShape shape;
  RoutedRows routed;
  const float* terms;  // [rows, intermediate]
  const void* dout;    // [tokens, hidden], where there is a bias
  int64_t dout_stride;
  ProductVector bias;
  void* out;  // [tokens, top_k]
  int64_t token_stride, slot_stride;
  int32_t dout_type, bias_type, out_type;  // BiasType
  int32_t unused;                          // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("routed", p.routed), visit("terms", p.terms), visit("dout", p.dout);
    visit("dout_stride", p.dout_stride), visit("bias", p.bias), visit("out", p.out);
    visit("token_stride", p.token_stride), visit("slot_stride", p.slot_stride), visit("dout_type", p.dout_type);
    visit("bias_type", p.bias_type), visit("out_type", p.out_type), visit("unused", p.unused);
  }
};

/// What a row's parts are divided and then multiplied by, so that they weigh what they should over the root of their
/// mean square.
struct ExpertNormParams {
  MoeShape shape;
  RoutedRows routed;
  const float* parts;  // [rows, hidden]
  float* factors;      // [rows, 2]
  float epsilon;
  int32_t weighs;  // else the weights stand on the input

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("routed", p.routed), visit("parts", p.parts), visit("factors", p.factors);
    visit("epsilon", p.epsilon), visit("weighs", p.weighs);
  }
};

/// out[token] = the sum of its parts in the order of slots.
struct ExpertCombineParams {
  MoeShape shape;
  PairTensor topk_ids;  // of parts that are yet to be normalised
  RoutedRows routed;
  const void* parts;  // [rows, hidden]
  const float* factors;
  ProductVector norm;
  void* out;
  int64_t out_stride;
  int32_t part_type, part_role, out_type, out_role;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("topk_ids", p.topk_ids), visit("routed", p.routed), visit("parts", p.parts);
    visit("factors", p.factors), visit("norm", p.norm), visit("out", p.out), visit("out_stride", p.out_stride);
    visit("part_type", p.part_type), visit("part_role", p.part_role), visit("out_type", p.out_type);
    visit("out_role", p.out_role);
  }
};

}  // namespace tilewise::device
