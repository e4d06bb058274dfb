// Tile sizes of the portable kernels: pure functions of the problem and the device.
#pragma once

#include "backends/portable/lowering.hpp"

namespace tilewise::backends::portable {

/// head_dim as kernels see it: the next multiple of 32.
[[nodiscard]] std::int32_t padded_dim(std::int64_t dim);

/// The configuration of a kernel for a problem, everything but packed_heads and split decided.
[[nodiscard]] device::KernelConfig configure(KernelKind kind, const Problem& problem, const DeviceTraits& traits);

/// The largest head dims that fit the device's shared memory; see portable_refusal().
[[nodiscard]] bool fits(KernelKind kind, const device::KernelConfig& config, const DeviceTraits& traits);

/// Whether one kernel computes dk and dv, whose waves share their products: where the machine reads tiles
/// both ways and a block fits.
[[nodiscard]] bool fuses_gradients(const Problem& problem, const DeviceTraits& traits);

/// Whether that kernel also adds up dq, in no fixed order: where the problem lets it.
[[nodiscard]] bool adds_query_sums(const Problem& problem);

/// Rows that a block of a kernel owns.
[[nodiscard]] constexpr std::int32_t block_rows(KernelKind kind, const device::KernelConfig& config) {
  return kind == KernelKind::store_query_sums ? config.tile_cols
                                              : config.waves / config.wave_cols * config.rows_per_wave;
}

/// Blocks that keys are split into for each multiprocessor, at most: more of the smallest.
[[nodiscard]] constexpr int blocks_at_once(const device::KernelConfig& config) {
  return config.waves == 1 && config.tile_cols <= 32 ? 4 : 2;
}

/// Shared memory of a block; the generated stub asserts it against the kernel's own struct.
[[nodiscard]] std::uint32_t shared_bytes(KernelKind kind, const device::KernelConfig& config, device::Machine machine);

/// The part of it that a launch asks the driver for: AMD's stubs declare theirs, so that it stands in the code object.
[[nodiscard]] std::uint32_t dynamic_shared_bytes(const KernelKey& key, device::Machine machine);

/// Lanes of a wave.
[[nodiscard]] constexpr std::uint32_t lanes(device::Machine machine) { return machine == device::kCdna ? 64 : 32; }

}  // namespace tilewise::backends::portable
