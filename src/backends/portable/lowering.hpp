// From a Problem to launches of portable kernels: which kernels, specialised on what, over which
// grid, with how much workspace. A pure function of the problem and the device's properties.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/common/kernel_config.h"
#include "jit/kernel_source.hpp"
#include "operations/attention/features.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

/// What a schedule may depend on of a device.
struct DeviceTraits {
  device::Machine machine = device::kSm80;
  std::string architecture;  ///< "sm_90a", "gfx942"; "host" for an emulation
  int multiprocessors = 1;
  std::size_t shared_bytes = 48 << 10;              ///< a block may have
  double gflops = 1.0, gigabytes_per_second = 1.0;  ///< sustained by these kernels, the latter out of caches too
  double memory_gigabytes_per_second = 1.0;         ///< the memory's own bandwidth, for the cost estimate
};

/// The bodies under src/device/portable, one kernel symbol each.
enum class KernelKind : std::uint8_t {
  forward,
  merge_splits,
  row_delta,
  query_gradient,
  key_gradient,
  fused_gradient,
  store_query_sums,
  store_key_sums,
  bias_gradient,
  sink_gradient,
};

/// The part of a launch that decides what is compiled: equal keys share one compiled kernel.
struct KernelKey {
  KernelKind kind = KernelKind::forward;
  device::KernelConfig config;
  friend bool operator==(const KernelKey&, const KernelKey&) = default;
};

/// One kernel launch of a plan, in order.
struct Launch {
  KernelKey key;
  std::uint32_t blocks = 0, threads = 0, shared_bytes = 0;
  device::GridParams grid{};  ///< pointers are still null: place_workspace() sets them
};

/// Of the workspace and each of its parts, in bytes.
inline constexpr std::size_t kWorkspaceAlignment = 256;

/// Offsets into the workspace, in bytes; -1 where a part is not needed.
struct WorkspaceParts {
  std::int64_t partial_out = -1, partial_lse = -1, delta = -1, query_sums = -1, key_sums = -1;
  std::size_t size = 0;
};

struct Lowering {
  std::vector<Launch> launches;
  WorkspaceParts workspace;
  std::string schedule;       ///< one line for explain()
  double estimated_us = 0.0;  ///< see estimate.hpp
};

/// What portable kernels honour, for every machine.
[[nodiscard]] operations::attention::FeatureSet portable_features();

/// Empty, or why the portable kernels can't serve a problem whose features they have.
[[nodiscard]] std::string portable_refusal(const Problem& problem, const DeviceTraits& traits);

/// Throws nothing for problems that portable_refusal() accepts.
[[nodiscard]] Lowering lower(const Problem& problem, const DeviceTraits& traits);

/// The generated source of a kernel: includes the machine's operations and the body, defines one
/// extern "C" kernel. kHost: for the emulation of `machine` instead of the device.
[[nodiscard]] jit::KernelSource make_source(const KernelKey& key, device::Machine machine, bool host);

/// "forward", ...: a kernel's name in messages and tables.
[[nodiscard]] std::string kernel_name(KernelKind kind);

/// Grid parameters with their workspace pointers, of a workspace aligned to kWorkspaceAlignment.
[[nodiscard]] device::GridParams place_workspace(const device::GridParams& grid, const WorkspaceParts& parts,
                                                 void* workspace);

}  // namespace tilewise::backends::portable
