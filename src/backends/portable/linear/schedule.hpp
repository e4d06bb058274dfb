// Configs of linear layers' kernels: what formats ask of operands, and shapes of tiles. Pure functions of the problem
// and the device.
#pragma once

#include <cstdint>
#include <string>

#include "backends/portable/traits.hpp"
#include "device/linear/config.h"
#include "tilewise/linear.hpp"

namespace tilewise::backends::portable {

[[nodiscard]] std::int32_t number_type_of_linear(DType dtype);

/// Why there are no kernels for a problem; empty where there are.
[[nodiscard]] std::string refusal_of(const LinearProblem& problem);

/// Which factors of x's and w's scales are left to whole sums.
struct LinearEnds {
  bool rows, columns, experts;
};
[[nodiscard]] LinearEnds ends_of(const LinearProblem& problem);

/// Operands of x times w; `rows` is the largest number of rows that a group has as a rule.
[[nodiscard]] device::LinearConfig forward_config(const LinearProblem& problem, const DeviceTraits& traits);
/// Of the gradient of what the activation is given by w the other way round. `dsum`: the element type of it.
[[nodiscard]] device::LinearConfig dx_config(const LinearProblem& problem, DType dsum, const DeviceTraits& traits);
[[nodiscard]] device::LinearDwConfig dw_config(const LinearProblem& problem, DType dsum, const DeviceTraits& traits);

/// Parts of the depth that fill the device where tiles are few.
[[nodiscard]] std::int64_t splits_of(const device::LinearConfig& config, std::int64_t tiles, std::int64_t depth,
                                     bool batch_invariant, const DeviceTraits& traits);

}  // namespace tilewise::backends::portable
