// Merge's row: what it honours, and how long it takes.
#include "backends/cpu/merge/merge_backend.hpp"

#include <algorithm>
#include <memory>

#include "backends/cpu/cost.hpp"
#include "backends/cpu/merge/merge_kernel.hpp"
#include "operations/merge/merge.hpp"

namespace tilewise::backends {
namespace cpu {
namespace {

class MergeImplementation final : public operations::merge::Implementation {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "cpu.generic"; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::merge::FeatureSet supported() const noexcept override {
    using enum operations::merge::Feature;
    return {forward, backward, f32, bf16, f16, f64, f32_parts, mixed_parts, packed, stacked, sink, dlse, dsink};
  }

  /// Memory's time, and each part's exponential and elements on cores that share the tasks.
  [[nodiscard]] core::Verdict judge(const MergeProblem& problem, const core::DeviceDescription& cpu) const override {
    constexpr double kCallNs = 1000.0, kPartNs = 15.0, kElementNs = 0.5, kWorkerNs = 5e3, kMostGigabytes = 250.0;
    const double parts = static_cast<double>(operations::merge::rows_of(problem)) * static_cast<double>(problem.parts);
    const double core_ns = parts * (kPartNs + kElementNs * static_cast<double>(problem.head_dim_v));
    const CpuTraits traits = traits_of({cpu.intel ? Processor::Vendor::intel : Processor::Vendor::other, cpu.family});
    const double limit =
        std::max(1.0, std::min(static_cast<double>(cpu.threads), static_cast<double>(merge_tasks(problem))));
    const double workers = std::clamp(core_ns / kWorkerNs, 1.0, limit);
    const double gigabytes = std::min(traits.core_gigabytes * workers, kMostGigabytes);
    const double ns = kCallNs + core_ns / workers + operations::merge::bytes_moved(problem) / gigabytes;
    return core::Verdict::accept(1e-3 * ns, make_merge_kernel(problem));
  }
};

}  // namespace
}  // namespace cpu

const core::Implementation& cpu_merge_implementation() {
  static const cpu::MergeImplementation implementation;
  return implementation;
}

}  // namespace tilewise::backends
