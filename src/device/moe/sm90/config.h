// What Hopper's kernels of expert layers are compiled for.
#pragma once

#include "device/common/activation.h"
#include "device/common/tensors.h"

namespace tilewise::device {

/// Of at most most_experts().
struct MoeSortConfig {
  int32_t warps = 32, own_experts = 4;  // experts of a warp, a multiple of 4
  int32_t counts = 0;                   // 1: the first launch, 0: the second

  static constexpr int32_t kChunk = 512;  // pairs of a block
  constexpr int32_t most_experts() const { return warps * own_experts; }
  constexpr int32_t threads() const { return 32 * warps; }
  bool operator==(const MoeSortConfig&) const = default;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("warps", c.warps), visit("own_experts", c.own_experts), visit("counts", c.counts);
  }
};

struct MoeGatherConfig {
  int32_t warps = 8;
  int32_t clears = 0;  // 1: rows of another matrix that are no pair's become 0

  constexpr int32_t threads() const { return 32 * warps; }
  bool operator==(const MoeGatherConfig&) const = default;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("warps", c.warps), visit("clears", c.clears);
  }
};

/// What is done between both products, and to their sums.
struct MoeActivationConfig {
  int32_t activation = static_cast<int32_t>(ActivationKind::silu);
  int32_t clamp = static_cast<int32_t>(ActivationClamp::none);
  int32_t gated = 1;            // 0: there is no gate, whatever GateLayout it would have
  int32_t weight_on_input = 0;  // topk_weights multiply the rows of x
  int32_t biases = 0;           // of either product, or of both

  constexpr ActivationKind kind() const { return static_cast<ActivationKind>(activation); }
  constexpr ActivationClamp clamps() const { return static_cast<ActivationClamp>(clamp); }
  bool operator==(const MoeActivationConfig&) const = default;

  template <class Config, class Visit>
  static constexpr void for_each_activation_field(Config& c, const Visit& visit) {
    visit("activation", c.activation), visit("clamp", c.clamp), visit("gated", c.gated);
    visit("weight_on_input", c.weight_on_input), visit("biases", c.biases);
  }
};

/// The whole layer in one launch for many rows, which come sorted and gathered.
struct MoeLayerConfig : MoeActivationConfig {
  int32_t type = kBf16;
  int32_t block_n = 256;  // most rows of an expert in a tile, a multiple of 64
  int32_t stages = 4;
  int32_t cluster = 2;       // blocks that load rows for each other
  int32_t column_step = 16;  // columns of a tile are a multiple of it, and it is one of 8 * cluster
  int32_t held_experts = 4;  // as MoeDecodeConfig has it
  int32_t saves = 0;         // 1: sums of the first product are left too

  constexpr int32_t threads() const { return 3 * 128; }
  bool operator==(const MoeLayerConfig&) const = default;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_activation_field(c, visit);
    visit("type", c.type), visit("block_n", c.block_n), visit("stages", c.stages), visit("cluster", c.cluster);
    visit("column_step", c.column_step), visit("held_experts", c.held_experts), visit("saves", c.saves);
  }
};

/// A product of the layer in fp8, whose rows and weights have scales of 1 x 128 and of 128 x 128, and which has a gate.
struct MoeScaledConfig : MoeActivationConfig {
  int32_t type = kBf16;  // of parts
  int32_t down = 0;      // 1: the second product, of quantised values; 0: the first
  int32_t stages = 4;
  int32_t cluster = 2;       // blocks that load rows for each other
  int32_t held_experts = 4;  // as MoeDecodeConfig has it

  constexpr int32_t threads() const { return 3 * 128; }
  bool operator==(const MoeScaledConfig&) const = default;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_activation_field(c, visit);
    visit("type", c.type), visit("down", c.down), visit("stages", c.stages), visit("cluster", c.cluster);
    visit("held_experts", c.held_experts);
  }
};

/// Sums of parts.
struct MoeCombineConfig {
  int32_t type = kBf16;  // of parts and out
  int32_t warps = 8;

  constexpr int32_t threads() const { return 32 * warps; }
  bool operator==(const MoeCombineConfig&) const = default;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("type", c.type), visit("warps", c.warps);
  }
};

/// Formats of weights: elements as rows have them; e2m1 with scales in e8m0 of 32 or in e4m3 of 16; e4m3 with scales in
/// f32 of 128 x 128.
enum MoeWeights : int32_t { kMoeWeightsAsRows = 0, kMoeMxfp4 = 1, kMoeNvfp4 = 2, kMoeFp8Blocks = 3 };
/// Bytes of a row's scales that are loaded together, since fewer would be loaded by as many sectors of 32, and what
/// they take, since they lie from the 16 bytes on that the first one is in.
inline constexpr int32_t kScaleRun = 32, kScaleRowBytes = kScaleRun + 16;

/// The whole layer in one launch, for few rows: weights are M of the products, an expert's rows are N.
struct MoeDecodeConfig : MoeActivationConfig {
  int32_t type = kBf16;                   // of rows
  int32_t weights = kMoeWeightsAsRows;    // MoeWeights
  int32_t block_n = 8;                    // most rows of an expert in a tile: 8, 16, 32, 64 or 128
  int32_t consumers = 1, row_blocks = 1;  // warpgroups that multiply, and 64s of weights' rows that each has
  int32_t stages = 8;
  int32_t held_ids = 1;       // ids that a lane holds, where 32 times as many are all of the call; 0: they come sorted
  int32_t held_experts = 4;   // whose counts a lane holds where ids come sorted; 32 times as many are all
  int32_t depth = 128;        // elements along k of a stage; of quantised weights 128 bytes
  int32_t scale_windows = 4;  // of quantised weights: how many runs of a tile's scales there is room for

  constexpr int32_t threads() const { return (consumers + 1) * 128; }
  constexpr bool quantised() const { return weights != kMoeWeightsAsRows; }
  constexpr int32_t elements_of_byte() const { return weights == kMoeFp8Blocks ? 1 : 2; }  // of quantised weights
  /// Columns of a row of weights in a stage, as their tensor map has them: elements, or bytes.
  constexpr int32_t weight_columns() const { return quantised() ? depth / elements_of_byte() : depth; }
  /// Bytes of a scale, and of those that a row has in a stage; rows that share one, as a power of two.
  constexpr int32_t scale_bytes() const { return weights == kMoeFp8Blocks ? 4 : 1; }
  constexpr int32_t stage_scale_bytes() const { return weights == kMoeFp8Blocks ? 4 : weights == kMoeNvfp4 ? 16 : 8; }
  constexpr int32_t scale_row_shift() const { return weights == kMoeFp8Blocks ? 7 : 0; }
  /// Of the scales that there is room for.
  constexpr int32_t all_scale_bytes() const { return quantised() ? scale_windows * block_m() * kScaleRowBytes : 0; }
  /// Rows of weights in a tile, and how many intermediate values they are.
  constexpr int32_t block_m() const { return consumers * row_blocks * 64; }
  constexpr int32_t block_j() const { return gated ? block_m() / 2 : block_m(); }
  bool operator==(const MoeDecodeConfig&) const = default;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_activation_field(c, visit);
    visit("type", c.type), visit("weights", c.weights), visit("block_n", c.block_n), visit("consumers", c.consumers);
    visit("row_blocks", c.row_blocks), visit("stages", c.stages), visit("held_ids", c.held_ids);
    visit("held_experts", c.held_experts), visit("depth", c.depth), visit("scale_windows", c.scale_windows);
  }
};

}  // namespace tilewise::device
