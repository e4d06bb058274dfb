// What Hopper's kernels of expert layers are told: plain data, shape beside every pointer.
#pragma once

#include "device/moe/shape.h"
#include "device/sm90/grid_counters.h"
#include "device/sm90/tensor_map.h"
#include "device/tile/activate.h"

namespace tilewise::device {

/// [num_experts, gate and up, size]: element (e, g, i) of BiasType `type`. data null: there is none.
struct ExpertBias {
  const void* data;
  int64_t expert_stride, gate_stride, stride;
  int32_t type;
  int32_t unused;  // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("expert_stride", p.expert_stride), visit("gate_stride", p.gate_stride);
    visit("stride", p.stride), visit("type", p.type), visit("unused", p.unused);
  }
};

/// Scales of quantised weights, [num_experts, blocks of rows, columns]. Gate's or up's value i has row
/// gate * gate_rows + i * value_rows of the weights. Strides are in bytes.
struct ExpertScales {
  const void* data;
  const float* global;  // of nvfp4 each expert's factor
  int64_t expert_stride, row_stride, column_stride;
  int64_t global_stride;  // in floats
  int32_t gate_rows, value_rows;
  int32_t row_blocks, columns, scale_bytes;  // of an expert; scales of each; of a scale
  int32_t in_runs;                           // 1: they are a whole number of 16 bytes without gaps, and begin on one

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("global", p.global), visit("expert_stride", p.expert_stride);
    visit("row_stride", p.row_stride), visit("column_stride", p.column_stride);
    visit("global_stride", p.global_stride), visit("gate_rows", p.gate_rows), visit("value_rows", p.value_rows);
    visit("row_blocks", p.row_blocks), visit("columns", p.columns), visit("scale_bytes", p.scale_bytes);
    visit("in_runs", p.in_runs);
  }
};

/// A matrix of 16-bit elements with contiguous rows that start on 16 bytes.
struct RowTensor {
  void* data;
  int64_t row_stride;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("row_stride", p.row_stride);
  }
};

/// Pairs, t * top_k + j, by experts and in their order within, as the sorting kernel leaves them.
struct SortedPairs {
  int32_t* offsets;  // [num_experts + 1]: where each expert's begin
  int32_t* pairs;    // [tokens * top_k]
  int32_t* rows;     // [tokens * top_k]: where a pair stands among them; of those that are nobody's -1

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("offsets", p.offsets), visit("pairs", p.pairs), visit("rows", p.rows);
  }
};

/// The launches: a block of 32 * warps threads for each chunk of pairs. One chunk takes the second launch alone.
struct MoeSortParams {
  MoeShape shape;
  PairTensor topk_ids;
  SortedPairs sorted;
  int32_t* counts;  // [chunks, most_experts()], on 16 bytes: what the first launch tells the second one
  int32_t chunks, most_experts;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("topk_ids", p.topk_ids), visit("sorted", p.sorted), visit("counts", p.counts);
    visit("chunks", p.chunks), visit("most_experts", p.most_experts);
  }
};

/// rows[i] = x[pairs[i] / top_k], row_weights[i] = topk_weights of pairs[i]; cleared[i] = 0 behind those. Blocks of 32
/// * warps threads, as many as fill the machine.
struct MoeGatherParams {
  MoeShape shape;
  PairTensor topk_weights;
  SortedPairs sorted;
  RowTensor x, rows;   // [tokens, hidden], [tokens * top_k, hidden]
  float* row_weights;  // [tokens * top_k]
  RowTensor cleared;   // [tokens * top_k, cleared_columns]
  int32_t cleared_columns;
  int32_t unused;  // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("topk_weights", p.topk_weights), visit("sorted", p.sorted), visit("x", p.x);
    visit("rows", p.rows), visit("row_weights", p.row_weights), visit("cleared", p.cleared);
    visit("cleared_columns", p.cleared_columns), visit("unused", p.unused);
  }
};

/// The launch: clusters of blocks, one for each multiprocessor, all of which must find room while no other launch waits
/// for this one. Rows, h and parts stand in the order of sorted pairs.
struct MoeLayerParams {
  TensorMap rows_map[kRowBoxes];  // [pairs, hidden], boxes of kMostBoxRows x 64, half as many rows, ...
  TensorMap h_map[kRowBoxes];     // [pairs, intermediate], the same
  TensorMap gate_up_map;          // as MoeDecodeParams has it, of 128 rows
  TensorMap h_store_map;          // 16 x 64; where there is a gate 16 x 32, swizzled in 64 bytes
  TensorMap down_map;             // [num_experts, hidden, intermediate], 1 x 128 x 64
  TensorMap parts_map;            // [pairs, hidden], 16 x 64
  TensorMap sums_map[2];          // what is saved of gates (or of ups alone), and of ups, boxes as h_store_map's
  MoeShape shape;
  const float* row_weights;  // [pairs]
  SortedPairs sorted;
  ExpertBias gate_up_bias, down_bias;
  RowTensor h, parts, out;
  RowTensor sums;      // [pairs, saved_columns]: gates, then ups
  uint32_t* counters;  // GridCounters' words, of as many counters as there can be groups
  ActivationNumbers numbers;
  int32_t saved_columns;  // 2 intermediate, or intermediate; 0: none are saved
  int32_t unused;         // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("rows_map", p.rows_map), visit("h_map", p.h_map), visit("gate_up_map", p.gate_up_map);
    visit("h_store_map", p.h_store_map), visit("down_map", p.down_map), visit("parts_map", p.parts_map);
    visit("sums_map", p.sums_map), visit("shape", p.shape);
    visit("row_weights", p.row_weights), visit("sorted", p.sorted), visit("gate_up_bias", p.gate_up_bias);
    visit("down_bias", p.down_bias), visit("h", p.h), visit("parts", p.parts), visit("out", p.out);
    visit("sums", p.sums), visit("counters", p.counters), visit("numbers", p.numbers);
    visit("saved_columns", p.saved_columns), visit("unused", p.unused);
  }
};

/// Scales of rows of 1 x 128, [rows, columns]. Strides are in elements.
struct RowScales {
  float* data;
  int64_t row_stride, column_stride;
  int32_t rows, columns;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("row_stride", p.row_stride), visit("column_stride", p.column_stride);
    visit("rows", p.rows), visit("columns", p.columns);
  }
};

/// A product of rows in fp8, in the order of sorted pairs. Clusters of blocks, as many as fill the machine. Scales of
/// weights are in f32; hidden and intermediate are multiples of 16, and gates of 64 values share a scale, as ups do.
struct MoeScaledParams {
  TensorMap rows_map;     // [pairs, hidden or intermediate], boxes of 64 / cluster rows x 128 bytes
  TensorMap weights_map;  // as MoeDecodeParams has it of packed weights, of 256 rows
  MoeShape shape;
  SortedPairs sorted;
  const float* row_weights;  // [pairs]
  RowScales row_scales;      // of the first product x's [tokens], of the second one values' [pairs]
  RowScales value_scales;    // the first product leaves them: those are contiguous
  ExpertScales weight_scales;
  ExpertBias bias;
  RowTensor out;  // [pairs, intermediate / 2] of two bytes each, or [pairs, hidden]
  ActivationNumbers numbers;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("rows_map", p.rows_map), visit("weights_map", p.weights_map), visit("shape", p.shape);
    visit("sorted", p.sorted), visit("row_weights", p.row_weights), visit("row_scales", p.row_scales);
    visit("value_scales", p.value_scales), visit("weight_scales", p.weight_scales), visit("bias", p.bias);
    visit("out", p.out), visit("numbers", p.numbers);
  }
};

/// Blocks of 32 * warps threads, as many as fill the machine.
struct MoeCombineParams {
  MoeShape shape;
  SortedPairs sorted;
  RowTensor parts, out;  // [pairs, hidden], [tokens, hidden]

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("sorted", p.sorted), visit("parts", p.parts), visit("out", p.out);
  }
};

/// The launch: a block for each multiprocessor, all of which must find room while no other launch waits for this one.
/// hidden and intermediate are multiples of 8, of quantised weights of 16 bytes. Where ids are held, pairs are at most
/// 32 * held_ids and tokens block_n.
struct MoeDecodeParams {
  // [num_experts, intermediate / 8, gate and up, 8, hidden], boxes of [1, block_j / 8, 1 or 2, 8, 64]; of packed
  // weights the last dimension is bytes, 128 of a box
  TensorMap gate_up_map;
  TensorMap down_map;  // [num_experts, hidden, intermediate], boxes of [1, block_m, 64]
  MoeShape shape;
  PairTensor topk_ids, topk_weights;
  SortedPairs sorted;  // where ids are not held
  ExpertBias gate_up_bias, down_bias;
  ExpertScales gate_up_scales, down_scales;  // of quantised weights
  RowTensor x, h, parts, out;  // [tokens, hidden], [pairs, intermediate], [pairs, hidden], [tokens, hidden]
  uint32_t* counters;          // GridCounters' words, of as many counters as there can be groups
  ActivationNumbers numbers;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("gate_up_map", p.gate_up_map), visit("down_map", p.down_map), visit("shape", p.shape);
    visit("topk_ids", p.topk_ids), visit("topk_weights", p.topk_weights), visit("sorted", p.sorted);
    visit("gate_up_bias", p.gate_up_bias), visit("down_bias", p.down_bias);
    visit("gate_up_scales", p.gate_up_scales), visit("down_scales", p.down_scales);
    visit("x", p.x), visit("h", p.h), visit("parts", p.parts), visit("out", p.out);
    visit("counters", p.counters), visit("numbers", p.numbers);
  }
};

}  // namespace tilewise::device
