// A call's tensors on a GPU: copied there byte for byte, guards and poison included, run, and copied back, so that
// the host's checks see what the kernels did around the tensors too.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "tilewise/attention.hpp"
#include "verify/drawn_call.hpp"

namespace tilewise::verify {

class DeviceRun {
 public:
  /// Plans the call on `device`; call and outputs must outlive this. Throws Error (unsupported) where the
  /// implementation refuses.
  DeviceRun(const DrawnCall& call, const std::vector<Output>& outputs, std::string_view implementation, Device device);
  /// The same of an attention call on tensors that lie in `memory`.
  DeviceRun(ForwardArguments arguments, std::vector<std::span<std::byte>> memory, std::string_view implementation,
            Device device);
  DeviceRun(BackwardArguments arguments, std::vector<std::span<std::byte>> memory, std::string_view implementation,
            Device device);

  /// Runs on copies and a workspace full of NaN, then copies inputs and outputs back. Throws Error (runtime) where
  /// the kernels leave their workspace or the device fails.
  void run() const;

 private:
  std::vector<std::span<std::byte>> memory_;  ///< of every tensor, on the host
  Device device_;
  Plan plan_;
  /// Runs the plan on a workspace and on the call's tensors, each changed first.
  std::function<void(const Plan& plan, void* workspace, const Change& change)> launch_;
};

}  // namespace tilewise::verify
