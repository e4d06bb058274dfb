// What implementations of linear and grouped linear layers are launched with, both passes.
#pragma once

#include "device/common/activation.h"
#include "operations/matrices.hpp"

namespace tilewise::operations::linear {

/// out[t, n] = activation(sum over k of x[t, k] w[e, n, k] + bias[e, n]), e being the group of row t.
struct LinearParams {
  Matrix x, out;         ///< [tokens, k], [tokens, n]
  BlockScales x_scales;  ///< of x in fp8
  ExpertMatrices w;      ///< [num_experts, n, k]
  ExpertVectors bias;    ///< [num_experts, n]
  Vector groups;         ///< i32 or i64; null: one group of all rows
  bool groups_counted;   ///< groups are counts [num_experts], else offsets [num_experts + 1]
  device::Activation activation;
  bool batch_invariant;  ///< a row's result does not depend on other rows

  // Backward: dout is read, the others are written where given.
  Matrix dout, dx;
  ExpertMatrices dw;
  ExpertVectors dbias;
};

}  // namespace tilewise::operations::linear
