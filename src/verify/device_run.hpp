// A call's tensors on a GPU: copied there byte for byte, guards and poison included, run, and copied back, so that
// the host's checks see what the kernels did around the tensors too.
#pragma once

#include <string_view>
#include <vector>

#include "tilewise/attention.hpp"
#include "verify/call_tensors.hpp"

namespace tilewise::verify {

class DeviceRun {
 public:
  /// Plans the call on `device`. Throws Error (unsupported) where the implementation refuses.
  DeviceRun(const CallTensors& tensors, const std::vector<Output>& outputs, std::string_view implementation,
            Device device);

  /// Runs on copies and a workspace full of NaN, then copies inputs and outputs back. Throws Error (runtime) where
  /// the kernels leave their workspace or the device fails.
  void run() const;

 private:
  ForwardArguments forward_;
  BackwardArguments backward_;
  std::vector<std::span<std::byte>> memory_;  ///< of every tensor, on the host
  Device device_;
  Plan plan_;
};

}  // namespace tilewise::verify
