// The KV cache step's emulated row of the dispatch table, of one family.
#pragma once

#include "backends/emulation/runtime.hpp"
#include "operations/kv_cache/kv_cache.hpp"

namespace tilewise::backends::emulation {

class EmulatedKvCache final : public operations::kv_cache::Implementation {
 public:
  explicit EmulatedKvCache(gpu::Family family) : family_(family) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_of(family_); }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::kv_cache::FeatureSet supported() const noexcept override;
  [[nodiscard]] core::Verdict judge(const KvCacheProblem& problem, const core::DeviceDescription& cpu) const override;

 private:
  gpu::Family family_;
};

}  // namespace tilewise::backends::emulation
