// What implementations of whole expert layers are launched with, both passes.
#pragma once

#include <cstdint>

#include "device/common/activation.h"
#include "operations/matrices.hpp"
#include "tilewise/block_format.hpp"

namespace tilewise::operations::moe {

/// out[t] = sum over j of w[t, j] (down[e] act(gate[e] x[t] + b, up[e] x[t] + b') + b''), e = topk_ids[t, j]. Of ids,
/// [first_expert, first_expert + num_experts) are the weights given here; any other is somebody else's and adds 0.
struct MoeParams {
  Matrix x, out;                          ///< [tokens, hidden]
  BlockScales x_scales;                   ///< of x in fp8
  Matrix topk_ids;                        ///< [tokens, top_k], i32 or i64
  Matrix topk_weights;                    ///< [tokens, top_k]
  ExpertMatrices gate_up;                 ///< [num_experts, 2 intermediate, hidden], or [.., intermediate, ..]
  ExpertMatrices down;                    ///< [num_experts, hidden, intermediate]
  ExpertVectors gate_up_bias, down_bias;  ///< [num_experts, 2 intermediate or intermediate], [num_experts, hidden]
  device::GateLayout gate_layout;
  device::Activation activation;
  std::int64_t first_expert;
  bool weight_on_input;  ///< w[t, j] multiplies x[t] instead
  bool batch_invariant;  ///< a token's result does not depend on other tokens

  /// What intermediate values are quantised to: a format whose scales belong to one row. none: they are rounded to the
  /// dtype of x, to bf16 where that is quantised.
  BlockFormat h_format;
  /// Where given, [num_experts, hidden]: down[e] h + b'' is multiplied by it and divided by the root of its mean square
  /// plus norm_epsilon, before the weight. Forward alone.
  ExpertVectors norm_weight;
  double norm_epsilon;

  Matrix gate_up_out;  ///< where given, [tokens * top_k, rows of gate_up]: written forward, read backward

  // Backward: dout is read, the others are written where given.
  Matrix dout, dx, dtopk_weights;
  ExpertMatrices dgate_up, ddown;
  ExpertVectors dgate_up_bias, ddown_bias;
};

/// Whether intermediate values may be quantised to it: fp8 whose scales belong to one row.
[[nodiscard]] constexpr bool is_h_format(const BlockFormat& format) {
  return format.element == DType::fp8_e4m3 && format.block_rows == 1;
}

}  // namespace tilewise::operations::moe
