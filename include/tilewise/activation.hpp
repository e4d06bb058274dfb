// What a linear layer may do to its sums.
#pragma once

#include <cstdint>

namespace tilewise {

/// gelu is the one with erf, gelu_tanh its approximation. relu_squared: max(x, 0)^2.
enum class Activation : std::uint8_t { identity, silu, gelu, gelu_tanh, relu, relu_squared };

}  // namespace tilewise
