// MLA's form of the KV cache step on Hopper: values are columns of the keys, of one head that all query heads share.
#pragma once

#include <string>

#include "backends/cuda/hopper/kernels.hpp"
#include "core/device_description.hpp"
#include "gpu/lowering.hpp"
#include "operations/kv_cache/kv_cache.hpp"

namespace tilewise::backends::hopper {

/// How rows and keys are scheduled, and how long that takes.
struct LatentSchedule {
  device::HopperLatentConfig config;
  device::LatentOrder order;
  double us = 0.0;
  device::KeySchedule key_schedule{};  // places 0: each sequence's keys come in order.num_splits parts
};

/// Why the kernel can't serve MLA's form; empty where it can.
[[nodiscard]] std::string latent_refusal(const KvCacheProblem& problem);

/// Parts that are scheduled by lengths where these may differ much; else their quickest number, by an estimate, or that
/// which is asked for. Of a problem that is not refused.
[[nodiscard]] LatentSchedule latent_schedule(const KvCacheProblem& problem, const core::DeviceDescription& device);

/// The attention's launches, without appending.
[[nodiscard]] gpu::Outcome lower_latent(const KvCacheProblem& problem, const core::DeviceDescription& device);

}  // namespace tilewise::backends::hopper
