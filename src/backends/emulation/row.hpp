// The emulated row of the dispatch table, of one family, for operations that have a PortableRow.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "backends/emulation/emulated_call.hpp"
#include "backends/emulation/runtime.hpp"
#include "backends/portable/row.hpp"

namespace tilewise::backends::emulation {

template <typename Op>
class EmulatedRow final : public core::ImplementationOf<Op> {
 public:
  using Problem = typename Op::Problem;
  explicit EmulatedRow(gpu::Family family) : family_(family) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_of(family_); }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] core::FeatureSetOf<typename Op::Feature> supported() const noexcept override {
    return Portable::features();
  }
  [[nodiscard]] core::Verdict judge(const Problem& problem, const core::DeviceDescription&) const override {
    gpu::Outcome outcome = Portable::lower(problem, runtime_of(family_)(0).description(), family_);
    if (!outcome.refusal.empty()) return core::Verdict::refuse(std::move(outcome.refusal));
    // Above the reference's: none is chosen by itself.
    return core::Verdict::accept(
        Portable::emulated_us(problem),
        std::make_unique<EmulatedCall<Op>>(problem, family_, std::move(outcome.lowering), kPortable));
  }

 private:
  using Portable = portable::Portable<Op>;
  static constexpr PortableKernels<Op> kPortable{
      [](const Problem& problem, const core::DeviceDescription& device, gpu::Family family) {
        return Portable::lower(problem, device, family).lowering;
      },
      [](Problem& problem, const typename Op::Params& call) {
        if constexpr (requires { problem.unaligned; }) problem.unaligned = !Portable::is_aligned(call);
      }};

  gpu::Family family_;
};

}  // namespace tilewise::backends::emulation
