// Activations of linear layers and experts as plain data: what reference, CPU and GPU kernels are told.
#pragma once

#include <stdint.h>

namespace tilewise::device {

/// swiglu_oai is gpt-oss's gate * sigmoid(alpha * gate) * (up + 1); the others are act(gate) * up, or act(up) alone.
enum class ActivationKind : int32_t { identity, silu, gelu, gelu_tanh, relu, relu_squared, swiglu_oai };

/// before: gate is at most limit, up in [-limit, limit]. after: the same of act(gate) and up. Without a gate what is
/// activated takes its place. A NaN stays.
enum class ActivationClamp : int32_t { none, before, after };

/// Where gate and up lie in one tensor: [gate; up], or row by row gate, up, gate, up.
enum class GateLayout : int32_t { none, concatenated, interleaved };

struct Activation {
  ActivationKind kind;
  ActivationClamp clamp;
  double alpha;  // of swiglu_oai
  double limit;  // of the clamp
};

}  // namespace tilewise::device
