// Attention's portable kernels under emulation.
#include "backends/emulation/attention.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "backends/portable/attention/lowering.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "gpu/lowered_kernel.hpp"
#include "operations/attention/work.hpp"

namespace tilewise::backends::emulation {
namespace {

bool rows_start_on_16_bytes(const device::Tensor4& t) {
  constexpr std::int64_t kElements = 8;
  return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && t.batch_stride % kElements == 0 &&
         t.seq_stride % kElements == 0 && t.head_stride % kElements == 0;
}

bool is_aligned(const device::AttentionParams& p) {
  const std::array<const device::Tensor4*, 8> tensors{&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv};
  return std::ranges::all_of(tensors, [](const auto* t) { return rows_start_on_16_bytes(*t); });
}

/// Lowers anew at each launch: a Problem of the CPU says nothing of alignment, for which there are two kinds of
/// kernels. Only those that are launched are compiled.
class EmulatedCall final : public operations::attention::Kernel {
 public:
  EmulatedCall(const Problem& problem, gpu::Family family, gpu::Lowering lowering)
      : problem_(problem), family_(family), planned_(std::move(lowering), runtime_of(family), 0) {}

  [[nodiscard]] std::string obstacle() const override { return planned_.obstacle(); }
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return planned_.workspace_size(); }
  [[nodiscard]] std::string schedule() const override { return planned_.schedule(); }

  void launch(const device::AttentionParams& params, void* workspace, void* stream) const override {
    // What nobody wrote reads as NaN.
    if (workspace != nullptr) std::memset(workspace, 0xFF, workspace_size());
    Problem problem = problem_;
    problem.unaligned = !is_aligned(params);
    const gpu::FindRuntime find_runtime = runtime_of(family_);
    gpu::LoweredKernel kernel(portable::lower(problem, find_runtime(0).description(), family_).lowering, find_runtime,
                              0);
    kernel.load();
    kernel.launch_on(&params, workspace, stream);
  }

 private:
  Problem problem_;
  gpu::Family family_;
  gpu::LoweredKernel planned_;
};

}  // namespace

operations::attention::FeatureSet EmulatedAttention::supported() const noexcept {
  return portable::attention_features();
}

core::Verdict EmulatedAttention::judge(const Problem& problem, const core::DeviceDescription&) const {
  portable::Outcome outcome = portable::lower(problem, runtime_of(family_)(0).description(), family_);
  if (!outcome.refusal.empty()) return core::Verdict::refuse(std::move(outcome.refusal));
  // The order of magnitude on one thread, compilation aside. Each cost is above the reference's, which accepts
  // whatever an emulation does: none is chosen by itself.
  constexpr operations::attention::ScalarCosts kCosts{1000.0, 5.0, 0.1, 0.1, 1.0 / 400.0};
  return core::Verdict::accept(operations::attention::scalar_us(problem, kCosts),
                               std::make_unique<EmulatedCall>(problem, family_, std::move(outcome.lowering)));
}

}  // namespace tilewise::backends::emulation
