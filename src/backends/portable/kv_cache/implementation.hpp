// The KV cache step's row of the dispatch table for the portable kernels of one family: CUDA's, and HIP's two.
#pragma once

#include <string_view>

#include "backends/portable/kv_cache/lowering.hpp"
#include "backends/portable/kv_cache/schedule.hpp"
#include "gpu/ahead_of_time.hpp"
#include "gpu/runtime.hpp"
#include "operations/kv_cache/kv_cache.hpp"

namespace tilewise::backends::portable {

class KvCacheImplementation final : public operations::kv_cache::Implementation, public gpu::AheadOfTime {
 public:
  constexpr KvCacheImplementation(std::string_view name, gpu::Family family, gpu::FindRuntime find_runtime) noexcept
      : name_(name), family_(family), find_runtime_(find_runtime) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] DeviceType device() const noexcept override { return gpu::traits_of(family_).device; }
  [[nodiscard]] operations::kv_cache::FeatureSet supported() const noexcept override { return kv_cache_features(); }
  [[nodiscard]] core::Verdict judge(const KvCacheProblem& problem,
                                    const core::DeviceDescription& device) const override;

  [[nodiscard]] gpu::Family family() const noexcept override { return family_; }
  [[nodiscard]] gpu::DescribedCall contiguous_call(const core::ProblemView& problem) const override;

 private:
  std::string_view name_;
  gpu::Family family_;
  gpu::FindRuntime find_runtime_;
};

}  // namespace tilewise::backends::portable
