// What Hopper's products are told: tensor maps and the order of tiles.
#pragma once

#include "device/sm90/tensor_map.h"
#include "device/sm90/tile_matrix.h"

namespace tilewise::device {

struct GemmParams {
  TensorMap x_map, w_map;  // [m, k]; [n, k], or [k, n]
  TensorMap out_map;       // [m, n], boxes of 16 rows x 64 columns
  TileMatrix grid;         // of clusters' tiles
  int32_t steps;           // tiles along k
  int32_t unused;          // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("x_map", p.x_map), visit("w_map", p.w_map), visit("out_map", p.out_map), visit("grid", p.grid);
    visit("steps", p.steps), visit("unused", p.unused);
  }
};

/// x in rows of 1 x 128 elements with a scale each, w in blocks of 128 x 128.
struct ScaledGemmParams {
  GemmParams gemm;
  TensorMap x_scale_map;   // fp32 [k / 128, m], boxes of block_m
  const float* w_scale;    // [n / 128, k / 128]
  int64_t w_scale_stride;  // a multiple of 4

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("gemm", p.gemm), visit("x_scale_map", p.x_scale_map), visit("w_scale", p.w_scale);
    visit("w_scale_stride", p.w_scale_stride);
  }
};

}  // namespace tilewise::device
