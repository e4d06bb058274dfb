// What linear layers and experts may do to their sums.
#pragma once

#include <cstdint>

#include "tilewise/cxx20.hpp"

namespace tilewise {

/// gelu is the one with erf, gelu_tanh its approximation. relu_squared: max(x, 0)^2. swiglu_oai, of experts with a
/// gate: gate * sigmoid(alpha * gate) * (up + 1).
enum class Activation : std::uint8_t { identity, silu, gelu, gelu_tanh, relu, relu_squared, swiglu_oai };

}  // namespace tilewise
