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
};

struct MoeGatherConfig {
  int32_t warps = 8;

  constexpr int32_t threads() const { return 32 * warps; }
  bool operator==(const MoeGatherConfig&) const = default;
};

/// The whole layer in one launch for many rows, which come sorted and gathered.
struct MoeLayerConfig {
  int32_t type = kBf16;
  int32_t block_n = 256;  // most rows of an expert in a tile, a multiple of 64
  int32_t stages = 4;
  int32_t cluster = 2;       // blocks that load rows for each other
  int32_t column_step = 16;  // columns of a tile are a multiple of it, and it is one of 8 * cluster
  int32_t held_experts = 4;  // as MoeDecodeConfig has it, and what follows
  ActivationKind activation = ActivationKind::silu;
  ActivationClamp clamp = ActivationClamp::none;
  int32_t gated = 1;
  int32_t weight_on_input = 0;
  int32_t biases = 0;

  constexpr int32_t threads() const { return 3 * 128; }
  bool operator==(const MoeLayerConfig&) const = default;
};

/// The whole layer in one launch, for few rows: weights are M of the products, an expert's rows are N.
struct MoeDecodeConfig {
  int32_t type = kBf16;                   // of rows and weights
  int32_t block_n = 8;                    // most rows of an expert in a tile: 8, 16, 32, 64 or 128
  int32_t consumers = 1, row_blocks = 1;  // warpgroups that multiply, and 64s of weights' rows that each has
  int32_t stages = 8;
  int32_t held_ids = 1;      // ids that a lane holds, where 32 times as many are all of the call; 0: they come sorted
  int32_t held_experts = 4;  // whose counts a lane holds where ids come sorted; 32 times as many are all
  int32_t depth = 128;       // elements along k of a stage
  ActivationKind activation = ActivationKind::silu;
  ActivationClamp clamp = ActivationClamp::none;
  int32_t gated = 1;            // 0: there is no gate, whatever GateLayout it would have
  int32_t weight_on_input = 0;  // topk_weights multiply the rows of x
  int32_t biases = 0;

  constexpr int32_t threads() const { return (consumers + 1) * 128; }
  /// Rows of weights in a tile, and how many intermediate values they are.
  constexpr int32_t block_m() const { return consumers * row_blocks * 64; }
  constexpr int32_t block_j() const { return gated ? block_m() / 2 : block_m(); }
  bool operator==(const MoeDecodeConfig&) const = default;
};

}  // namespace tilewise::device
