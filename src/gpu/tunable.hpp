// What `tilewise tune` asks of an implementation beside judging: the schedules among which a problem's quickest is
// found by running them.
#pragma once

#include <string>
#include <vector>

#include "core/device_description.hpp"
#include "core/operation.hpp"

namespace tilewise::gpu {

/// Implementations whose judge() takes the schedule that a description's `tuned` names for a problem.
class Tunable {
 public:
  /// The names of the schedules that a problem can have on a device, the one that it has untuned first. A pure
  /// function; the implementation accepts the problem.
  [[nodiscard]] virtual std::vector<std::string> schedule_names(const core::ProblemView& problem,
                                                                const core::DeviceDescription& device) const = 0;
  /// The text under which a problem's schedule is kept: the problem's own, less what no schedule depends on.
  [[nodiscard]] virtual std::string tuning_text(const core::ProblemView& problem) const = 0;

 protected:
  constexpr Tunable() = default;
  ~Tunable() = default;
};

}  // namespace tilewise::gpu
