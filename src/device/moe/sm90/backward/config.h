// What Hopper's kernels of expert layers' backward pass are compiled for.
#pragma once

#include "device/gemm/sm90/config.h"
#include "device/moe/sm90/config.h"

namespace tilewise::device {

/// Rows of x times gate_up, and intermediate values and the gradient of that product from them.
struct MoeSlopesConfig : MoeActivationConfig {
  int32_t type = kBf16;
  int32_t interleaved = 0;  // 1: rows of gates and ups take turns
  int32_t stages = 4, cluster = 2;

  static constexpr int32_t kBlockN = 256;  // rows of gate_up
  /// Intermediate values of a tile.
  constexpr int32_t values() const { return gated ? kBlockN / 2 : kBlockN; }
  /// Of the product.
  constexpr GemmConfig gemm() const {
    GemmConfig c;
    c.type = c.out_type = type, c.block_n = kBlockN, c.stages = stages, c.cluster = cluster;
    c.shares_x = 1, c.grouped = 1;
    return c;
  }
  constexpr int32_t threads() const { return gemm().threads(); }
  bool operator==(const MoeSlopesConfig&) const = default;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_activation_field(c, visit);
    visit("type", c.type), visit("interleaved", c.interleaved), visit("stages", c.stages), visit("cluster", c.cluster);
  }
};

/// Intermediate values and the gradient of the first product from sums that the forward pass has saved, a row by a warp
/// at a time.
struct MoeSavedSlopesConfig : MoeActivationConfig {
  int32_t type = kBf16;
  int32_t interleaved = 0;  // 1: rows of gates and ups take turns in gate_up; what is saved has gates first
  int32_t warps = 8;

  constexpr int32_t threads() const { return 32 * warps; }
  bool operator==(const MoeSavedSlopesConfig&) const = default;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_activation_field(c, visit);
    visit("type", c.type), visit("interleaved", c.interleaved), visit("warps", c.warps);
  }
};

/// Gradients of topk_weights, a pair by a warp at a time.
struct MoeDweightsConfig {
  int32_t type = kBf16;  // of dout
  int32_t biased = 0;    // 1: down has a bias
  int32_t warps = 8;

  constexpr int32_t threads() const { return 32 * warps; }
  bool operator==(const MoeDweightsConfig&) const = default;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("type", c.type), visit("biased", c.biased), visit("warps", c.warps);
  }
};

/// Sums over an expert's rows of products of two operands' columns.
struct MoeDwConfig {
  int32_t type = kBf16;
  int32_t block_n = 256;  // a multiple of 64; 128 columns of the other operand
  int32_t depth = 64;     // rows of a stage, a multiple of 16
  int32_t stages = 4, store_buffers = 2;
  int32_t cluster = 2;  // blocks one below another that load for each other

  static constexpr int32_t kBlockM = 128, kConsumers = 2;
  constexpr int32_t threads() const { return (kConsumers + 1) * 128; }
  bool operator==(const MoeDwConfig&) const = default;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("type", c.type), visit("block_n", c.block_n), visit("depth", c.depth), visit("stages", c.stages);
    visit("store_buffers", c.store_buffers), visit("cluster", c.cluster);
  }
};

}  // namespace tilewise::device
