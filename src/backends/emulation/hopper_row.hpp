// Hopper's emulated row of the dispatch table, of operations whose Hopper kernels take problems by hopper::lower().
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "backends/cuda/hopper/linear.hpp"
#include "backends/cuda/hopper/moe.hpp"
#include "backends/emulation/emulated_call.hpp"
#include "backends/emulation/runtime.hpp"
#include "backends/portable/linear/lowering.hpp"
#include "backends/portable/moe/lowering.hpp"
#include "core/message.hpp"
#include "operations/linear/rules.hpp"
#include "operations/moe/rules.hpp"
#include "tilewise/error.hpp"

namespace tilewise::backends::emulation {

/// What the row must be told of an operation.
template <typename Op>
struct HopperKernels;

template <>
struct HopperKernels<operations::Linear> {
  static constexpr std::string_view kName = "linear";
  static operations::linear::FeatureSet features() { return hopper::linear_features(); }
  static bool is_aligned(const operations::linear::LinearParams& call) {
    return portable::Portable<operations::Linear>::is_aligned(call);
  }
  static double flops(const LinearProblem& p) { return operations::linear::flops(p); }
  static double bytes_moved(const LinearProblem& p) { return operations::linear::bytes_moved(p); }
};

template <>
struct HopperKernels<operations::Moe> {
  static constexpr std::string_view kName = "moe";
  static operations::moe::FeatureSet features() { return hopper::moe_features(); }
  static bool is_aligned(const operations::moe::MoeParams& call) {
    return portable::Portable<operations::Moe>::is_aligned(call);
  }
  static double flops(const MoeProblem& p) { return operations::moe::flops(p); }
  static double bytes_moved(const MoeProblem& p) { return operations::moe::bytes_moved(p); }
};

template <typename Op>
class HopperRow final : public core::ImplementationOf<Op> {
 public:
  using Problem = typename Op::Problem;
  /// `family` is sm90, which alone has such kernels.
  explicit HopperRow(gpu::Family family) : family_(family) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_of(family_); }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] core::FeatureSetOf<typename Op::Feature> supported() const noexcept override {
    return Kernels::features();
  }
  [[nodiscard]] core::Verdict judge(const Problem& problem, const core::DeviceDescription&) const override {
    gpu::Outcome outcome = hopper::lower(problem, runtime_of(family_)(0).description());
    if (!outcome.refusal.empty()) return core::Verdict::refuse(std::move(outcome.refusal));
    // The order of magnitude on one thread, compilation aside. Each cost is above the reference's: none is chosen by
    // itself.
    constexpr double kCallUs = 10000.0, kFlopUs = 1e-2, kByteUs = 1e-2;
    const double us = kCallUs + kFlopUs * Kernels::flops(problem) + kByteUs * Kernels::bytes_moved(problem);
    return core::Verdict::accept(
        us, std::make_unique<EmulatedCall<Op>>(problem, family_, std::move(outcome.lowering), kPortable));
  }

 private:
  using Kernels = HopperKernels<Op>;
  static constexpr PortableKernels<Op> kPortable{
      [](const Problem& problem, const core::DeviceDescription& device, gpu::Family) {
        gpu::Outcome outcome = hopper::lower(problem, device);
        if (!outcome.refusal.empty()) {
          throw Error(ErrorCode::unsupported, core::concat(Kernels::kName, ": ", outcome.refusal));
        }
        return std::move(outcome.lowering);
      },
      [](Problem& problem, const typename Op::Params& call) { problem.unaligned = !Kernels::is_aligned(call); }};

  gpu::Family family_;
};

}  // namespace tilewise::backends::emulation
