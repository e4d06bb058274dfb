// Small kernels written against the emulated machines, run without a compiler at run time.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "backends/emulation/emulator.hpp"
#include "device/tile/machine_host.h"
#include "tilewise/error.hpp"

namespace tilewise::test {

struct NoParams {};
inline constexpr NoParams kNoParams{};

/// A kernel of `body(shared)`, a lambda without captures.
template <class Shared_, class Body>
struct BodyKernel {
  using Params = NoParams;
  using Shared = Shared_;
  static void run(const Params&, Shared& shared) { Body{}(shared); }
};
template <class Machine, class Shared, class Body>
const device::HostKernel* kernel_of(Body) {
  return device::host_kernel<BodyKernel<Shared, Body>, Machine>();
}

/// What went wrong, or empty. `memory`: what the kernel may touch; `params`: of the kernel's type; `at_once`: blocks
/// that the machine has room for.
inline std::string fault_of(const device::HostKernel* kernel, int threads, int blocks = 1, std::uint64_t seed = 0,
                            const backends::emulation::GlobalMemory& memory = {}, const void* params = &kNoParams,
                            int cluster = 1, int at_once = 1) {
  try {
    backends::emulation::run_grid(*kernel, {"test", blocks, threads, cluster, at_once}, params, memory, seed);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::runtime);
    return error.what();
  }
  return {};
}

template <class Machine, class Shared, class Body>
std::string fault_of_body(int threads, Body body, std::uint64_t seed = 0) {
  return fault_of(kernel_of<Machine, Shared>(body), threads, 1, seed);
}

inline testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << part << "' is not in: " << (text.empty() ? "(no fault)" : text);
}

}  // namespace tilewise::test
