// What Hopper's products are compiled for: out = activation(x w^T + bias), of tiles that a block works on one after
// another.
#pragma once

#include "device/common/activation.h"
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
  int32_t grouped = 0;     // 1: rows of x are by expert, each of whom has a w of its own
  int32_t biases = 0;      // 1: there is a bias
  int32_t activation = static_cast<int32_t>(ActivationKind::identity);

  static constexpr int32_t kConsumers = 2;
  /// Elements of 128 bytes, a row of a tile.
  constexpr int32_t block_k() const { return type == kE4m3 ? 128 : 64; }
  constexpr int32_t element_bytes() const { return type == kE4m3 ? 1 : 2; }
  constexpr ActivationKind kind() const { return static_cast<ActivationKind>(activation); }
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
  /// Scales of x's rows of one load, which begins on 16 bytes, and what they take in shared memory.
  constexpr int32_t x_scale_box() const { return grouped ? block_m + 4 : block_m; }
  constexpr int32_t x_scale_room() const { return (x_scale_box() + 31) / 32 * 32; }
  bool operator==(const GemmConfig&) const = default;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("type", c.type), visit("out_type", c.out_type), visit("block_m", c.block_m), visit("block_n", c.block_n);
    visit("stages", c.stages), visit("store_buffers", c.store_buffers), visit("cluster", c.cluster);
    visit("shares_x", c.shares_x), visit("w_mn_major", c.w_mn_major), visit("parts", c.parts);
    visit("grouped", c.grouped), visit("biases", c.biases), visit("activation", c.activation);
  }
};

/// What comes before a product: experts' first rows as it reads them, or scales where it loads them.
struct GemmPrepareConfig {
  int32_t warps = 8;
  int32_t grouped = 0, scaled = 0;

  constexpr int32_t threads() const { return 32 * warps; }
  bool operator==(const GemmPrepareConfig&) const = default;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("warps", c.warps), visit("grouped", c.grouped), visit("scaled", c.scaled);
  }
};

}  // namespace tilewise::device
