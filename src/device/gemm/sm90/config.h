// What Hopper's products are compiled for: out = x w^T, of tiles that a block works on one after another.
#pragma once

#include "device/common/tensors.h"

namespace tilewise::device {

struct GemmConfig {
  int32_t type = kBf16;      // of x and w
  int32_t out_type = kBf16;  // 16 bits
  int32_t block_m = 128, block_n = 256;
  int32_t stages = 4, store_buffers = 2;
  int32_t cluster = 2;     // blocks that load for each other, 1: none
  int32_t shares_x = 0;    // 1: they have tiles side by side and share x's rows; 0: one below another, and share w's
  int32_t w_mn_major = 0;  // 1: w is [k, n]; 0: [n, k]
  int32_t parts = 1;       // of scaled products: sums that are multiplied while others are promoted, in turn

  static constexpr int32_t kConsumers = 2;
  /// Elements of 128 bytes, a row of a tile.
  constexpr int32_t block_k() const { return type == kE4m3 ? 128 : 64; }
  constexpr int32_t element_bytes() const { return type == kE4m3 ? 1 : 2; }
  constexpr int32_t threads() const { return (kConsumers + 1) * 128; }
  /// Of 64 rows, that a warpgroup has.
  constexpr int32_t row_blocks() const { return block_m / (64 * kConsumers); }
  /// Rows and columns of the tiles that a cluster has together.
  constexpr int32_t cluster_m() const { return block_m * (shares_x ? 1 : cluster); }
  constexpr int32_t cluster_n() const { return block_n * (shares_x ? cluster : 1); }
  /// Rows of x and w of one load; steps of K where w is MN-major.
  constexpr int32_t x_box() const { return shares_x ? block_m / cluster : block_m; }
  constexpr int32_t w_box() const {
    const int32_t rows = w_mn_major ? block_k() : block_n;
    return shares_x ? rows : rows / cluster;
  }
  bool operator==(const GemmConfig&) const = default;
};

}  // namespace tilewise::device
