// The KV cache step's row of the dispatch table for Hopper's own instructions: attention over caches of q's element
// type, contiguous or in pages. New keys are appended, and queries rotated, by portable kernels in launches before.
#pragma once

#include "backends/cuda/hopper/kernels.hpp"
#include "gpu/ahead_of_time.hpp"
#include "gpu/lowering.hpp"
#include "gpu/runtime.hpp"
#include "operations/kv_cache/features.hpp"
#include "operations/kv_cache/kv_cache.hpp"

namespace tilewise::backends::hopper {

[[nodiscard]] operations::kv_cache::FeatureSet kv_cache_features();

[[nodiscard]] gpu::Outcome lower(const KvCacheProblem& problem, const core::DeviceDescription& device);

class KvCacheImplementation final : public operations::kv_cache::Implementation, public gpu::AheadOfTime {
 public:
  constexpr explicit KvCacheImplementation(gpu::FindRuntime find_runtime) noexcept : find_runtime_(find_runtime) {}

  [[nodiscard]] std::string_view name() const noexcept override { return kImplementationName; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cuda; }
  [[nodiscard]] operations::kv_cache::FeatureSet supported() const noexcept override { return kv_cache_features(); }
  [[nodiscard]] core::Verdict judge(const KvCacheProblem& problem,
                                    const core::DeviceDescription& device) const override;

  [[nodiscard]] gpu::Family family() const noexcept override { return gpu::Family::sm90; }
  [[nodiscard]] gpu::DescribedCall contiguous_call(const core::ProblemView& problem) const override;

 private:
  gpu::FindRuntime find_runtime_;
};

}  // namespace tilewise::backends::hopper
