// Configs of expert layers' kernels: what formats and layouts ask of operands, and shapes of tiles. Pure functions of
// the problem and the device.
#pragma once

#include <cstdint>
#include <string>

#include "backends/portable/traits.hpp"
#include "device/moe/config.h"
#include "device/quantize/config.h"
#include "tilewise/moe.hpp"

namespace tilewise::backends::portable {

/// Why there are no kernels for a problem; empty where there are.
[[nodiscard]] std::string refusal_of(const MoeProblem& problem);

/// Element type of what lies between both products where it is not quantised.
[[nodiscard]] DType row_dtype(const MoeProblem& problem);

[[nodiscard]] device::ExpertUpConfig up_config(const MoeProblem& problem, const DeviceTraits& traits);
[[nodiscard]] device::QuantizeConfig quantize_config(const MoeProblem& problem);
[[nodiscard]] device::ExpertRowsConfig down_config(const MoeProblem& problem, const DeviceTraits& traits);
/// Of dout times down, and of the products' gradients times gate_up.
[[nodiscard]] device::ExpertRowsConfig dh_config(const MoeProblem& problem, const DeviceTraits& traits);
[[nodiscard]] device::ExpertRowsConfig dx_config(const MoeProblem& problem, const DeviceTraits& traits);
[[nodiscard]] device::ExpertDwConfig dgate_up_config(const MoeProblem& problem, const DeviceTraits& traits);
[[nodiscard]] device::ExpertDwConfig ddown_config(const MoeProblem& problem, const DeviceTraits& traits);

}  // namespace tilewise::backends::portable
