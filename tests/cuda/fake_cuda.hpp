// What the tests ask of the fake libcuda: how it shall answer, and what it was called with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "device/attention/params.h"

namespace tilewise::fake {

struct LaunchRecord {
  int device;  ///< of the kernel's module
  std::uint32_t blocks, threads, shared_bytes;
  void* stream;
  bool programmatic;                 ///< may begin before the kernel before it has ended
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

struct State {
  int capture_status = 0;  ///< of every stream
  int launch_result = 0;   ///< what cuLaunchKernel answers
  std::size_t largest_allocation = SIZE_MAX;
  std::vector<LaunchRecord> launches;
  std::vector<int> loads;                    ///< devices of the modules loaded, in order
  std::vector<std::uint32_t> shared_limits;  ///< set by cuFuncSetAttribute
  std::size_t allocations = 0, frees = 0;
  std::size_t encodings = 0;  ///< of tensor maps
};

/// Devices 0 (compute capability 9.0), 1 (8.0) and 2 (7.5); none where the variable FAKE_CUDA_EMPTY is set.
inline constexpr std::array<int, 3> kComputeCapabilities{90, 80, 75};

}  // namespace tilewise::fake

/// Exported by the fake library.
extern "C" tilewise::fake::State* fake_cuda_state();
/// The device whose context the calling thread has; -1 without one. Pushes and pops must come in pairs.
extern "C" int fake_cuda_current();
extern "C" void fake_cuda_make_current(int device);
