// What a device is, as far as judging a problem and choosing its schedule goes.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/tensor.hpp"

namespace tilewise::core {

/// What `tilewise tune` found quickest on a kind of device: the name of a schedule by tuning_key().
using TunedSchedules = std::map<std::string, std::string, std::less<>>;

/// The implementation's name, a space and the problem's text.
[[nodiscard]] inline std::string tuning_key(std::string_view implementation, std::string_view problem) {
  return std::string(implementation).append(" ").append(problem);
}

/// A plain value: of a device that is here, or of one that tests and ahead-of-time compilation speak of.
struct DeviceDescription {
  Device device;
  std::string architecture;  ///< "sm_90a", "gfx942", "x86-64"; "host" of an emulation
  std::string refusal;       ///< why nothing can run on it; empty where something can

  int multiprocessors = 1;                   ///< cores of a CPU
  double gigahertz = 1.0;                    ///< peak clock; GPUs alone, as what follows
  std::size_t shared_bytes = 48 << 10;       ///< most that a block may have
  double matrix_rate = 1.0;                  ///< multiply-adds of half precision of a multiprocessor in a cycle
  double memory_gigabytes_per_second = 1.0;  ///< the memory's own bandwidth

  std::shared_ptr<const TunedSchedules> tuned;  ///< null where nothing was tuned

  // CPUs alone.
  int threads = 1;     ///< that a call may use
  bool intel = false;  ///< the vendor, and its family of processors as cpuid counts them
  int family = 0;
  /// An instruction set that can't be used, and why.
  struct Lack {
    std::string_view instruction_set;
    std::string reason;
  };
  std::vector<Lack> lacks;
};

/// The name of the schedule that was tuned for a problem; null where none was. `problem_text` is asked for where
/// anything was.
template <typename ProblemText>
[[nodiscard]] const std::string* find_tuned(const DeviceDescription& device, std::string_view implementation,
                                            const ProblemText& problem_text) {
  if (device.tuned == nullptr) return nullptr;
  const auto found = device.tuned->find(tuning_key(implementation, problem_text()));
  return found == device.tuned->end() ? nullptr : &found->second;
}

/// Devices of one kind share what was tuned: "sm_90a-132", the architecture and its multiprocessors.
[[nodiscard]] inline std::string tuned_kind(const DeviceDescription& device) {
  return device.architecture + "-" + std::to_string(device.multiprocessors);
}

}  // namespace tilewise::core
