// What the tests ask of the fake libamdhip64.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "device/attention/params.h"

namespace tilewise::fake {

struct HipLaunch {
  int device;  ///< the thread's when it launched
  std::uint32_t blocks, threads, shared_bytes;
  void* stream;
  std::array<std::byte, 768> block;  ///< the beginning of the parameters
  /// As the kernel that they are for takes them.
  template <typename Params>
  [[nodiscard]] Params params() const {
    static_assert(sizeof(Params) <= sizeof block);
    Params params;
    std::memcpy(&params, block.data(), sizeof params);
    return params;
  }
};

struct HipState {
  int launch_result = 0;
  int current = 0;  ///< device
  std::vector<HipLaunch> launches;
  std::vector<int> loads;
};

/// Devices by index; the last is of no architecture that kernels are written for.
inline constexpr std::array<std::string_view, 3> kArchitectures{"gfx942:sramecc+:xnack-", "gfx1100", "gfx1030"};

}  // namespace tilewise::fake

extern "C" tilewise::fake::HipState* fake_hip_state();
