// What Hopper's products are told: tensor maps, the order of tiles, and what their epilogue needs.
#pragma once

#include "device/sm90/tensor_map.h"
#include "device/sm90/tile_matrix.h"

namespace tilewise::device {

/// [num_experts, n] of BiasType `type`.
struct GemmBias {
  const void* data;
  int64_t expert_stride, stride;
  int32_t type;
  int32_t unused;  // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("expert_stride", p.expert_stride), visit("stride", p.stride), visit("type", p.type);
    visit("unused", p.unused);
  }
};

struct GemmParams {
  TensorMap x_map;         // [m, k]
  TensorMap w_map;         // [num_experts, n, k], or [num_experts, k, n]
  TensorMap out_map;       // [m, n], boxes of 16 rows x 64 columns
  TileMatrix grid;         // of clusters' tiles; grouped: only its columns are known
  const int32_t* offsets;  // grouped: [num_experts + 1], rising from 0 or more to m or less
  void* out;               // grouped: n is a multiple of 8 and rows start on 16 bytes
  int64_t out_stride;
  GemmBias bias;
  int32_t steps;        // tiles along k
  int32_t num_experts;  // 0 where it is not grouped
  int32_t m, n;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("x_map", p.x_map), visit("w_map", p.w_map), visit("out_map", p.out_map), visit("grid", p.grid);
    visit("offsets", p.offsets), visit("out", p.out), visit("out_stride", p.out_stride), visit("bias", p.bias);
    visit("steps", p.steps), visit("num_experts", p.num_experts), visit("m", p.m), visit("n", p.n);
  }
};

/// Rows by expert, of which so many at most may have some: num_experts.
inline constexpr int32_t kMostGroupedExperts = 256;
struct GroupedGemmParams {
  GemmParams gemm;                       // x_map: boxes of kMostBoxRows
  TensorMap more_x_maps[kRowBoxes - 1];  // of half as many rows each

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("gemm", p.gemm), visit("more_x_maps", p.more_x_maps);
  }
};

/// x in rows of 1 x 128 elements with a scale each, w in blocks of 128 x 128.
struct ScaledGemmParams {
  GemmParams gemm;
  TensorMap x_scale_map;                          // fp32 [k / 128, m], boxes of x_scale_box()
  const float* w_scale;                           // [num_experts, n / 128, k / 128]
  int64_t w_scale_expert_stride, w_scale_stride;  // multiples of 4

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("gemm", p.gemm), visit("x_scale_map", p.x_scale_map), visit("w_scale", p.w_scale);
    visit("w_scale_expert_stride", p.w_scale_expert_stride), visit("w_scale_stride", p.w_scale_stride);
  }
};

/// [experts, rows, columns] of fp32 or of e8m0.
struct GemmScales {
  const void* data;
  int64_t expert_stride, row_stride, column_stride;
  int32_t e8m0;
  int32_t unused;  // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("expert_stride", p.expert_stride), visit("row_stride", p.row_stride);
    visit("column_stride", p.column_stride), visit("e8m0", p.e8m0), visit("unused", p.unused);
  }
};

/// Integers of 4 or 8 bytes: num_experts + 1 offsets, or num_experts counts.
struct GroupNumbers {
  const void* data;
  int64_t stride;
  int32_t bytes, counted;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("stride", p.stride), visit("bytes", p.bytes), visit("counted", p.counted);
  }
};

/// Blocks of 32 * warps threads, as many as fill the machine.
struct GemmPrepareParams {
  GroupNumbers groups;
  GemmScales x_scale, w_scale;       // [m, k_blocks]; [num_experts, n_blocks, k_blocks]
  int32_t* offsets;                  // as GemmParams has them
  float *x_scales, *w_scales;        // as ScaledGemmParams has them; m_padded apart
  int32_t num_experts, m, m_padded;  // m_padded, w_stride: multiples of 4
  int32_t k_blocks, n_blocks, w_stride;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("groups", p.groups), visit("x_scale", p.x_scale), visit("w_scale", p.w_scale), visit("offsets", p.offsets);
    visit("x_scales", p.x_scales), visit("w_scales", p.w_scales), visit("num_experts", p.num_experts);
    visit("m", p.m), visit("m_padded", p.m_padded), visit("k_blocks", p.k_blocks), visit("n_blocks", p.n_blocks);
    visit("w_stride", p.w_stride);
  }
};

}  // namespace tilewise::device
