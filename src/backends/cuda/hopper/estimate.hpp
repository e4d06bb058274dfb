// How long the Hopper forward kernel takes: a model fitted to an H200, by which schedules are chosen too.
#pragma once

#include <cstdint>

#include "core/device_description.hpp"
#include "device/hopper/config.h"
#include "operations/attention/work.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

/// Of one problem on one device, in microseconds: pure functions.
class Estimator {
 public:
  /// Refers to both.
  Estimator(const Problem& problem, const core::DeviceDescription& device);

  /// The launch included, and that of the kernel that merges parts of the keys.
  [[nodiscard]] double forward_us(const device::HopperForwardConfig& config, std::int64_t splits) const;
  /// Tiles of keys that a tile of queries sees at most.
  [[nodiscard]] std::int64_t steps(const device::HopperForwardConfig& config) const;

 private:
  [[nodiscard]] double step_us(const device::HopperForwardConfig& config) const;
  [[nodiscard]] double merge_us(std::int64_t splits) const;

  const Problem& p_;
  const core::DeviceDescription& device_;
  operations::attention::Extent extent_;
};

}  // namespace tilewise::backends::hopper
