// Route's row: what it honours, how long it takes, and its kernel. Blocks of tokens are the tasks.
#include "backends/cpu/route/route_backend.hpp"

#include <algorithm>
#include <memory>
#include <string>

#include "backends/cpu/cost.hpp"
#include "backends/cpu/route/route_backward.hpp"
#include "backends/cpu/route/route_forward.hpp"
#include "backends/cpu/rows.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "core/parallel.hpp"
#include "operations/route/route.hpp"

namespace tilewise::backends {
namespace cpu {
namespace {

constexpr std::int64_t kBlockTokens = 16;

/// `Pass` is RouteForward or RouteBackward of a Real.
template <typename Pass>
class RouteKernel final : public operations::route::Kernel {
 public:
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return 0; }
  [[nodiscard]] std::string schedule() const override { return core::concat("blocks of ", kBlockTokens, " tokens"); }

  void launch(const RouteParams& p, void*, void*) const override {
    constexpr double kFlopsAnExpert = 40.0;
    const std::int64_t tokens = p.logits.rows;
    const int workers =
        workers_for(kFlopsAnExpert * static_cast<double>(tokens) * static_cast<double>(p.logits.columns));
    core::parallel_for(core::ceil_div(tokens, kBlockTokens), workers, [&](std::int64_t block, int) {
      Pass pass(p, thread_scratch(Pass::scratch_bytes(p)));
      const std::int64_t end = std::min(tokens, (block + 1) * kBlockTokens);
      for (std::int64_t token = block * kBlockTokens; token < end; ++token) pass.token(token);
    });
  }
};

template <typename Real>
std::unique_ptr<core::Kernel> make_kernel(const RouteProblem& problem) {
  if (problem.pass == RoutePass::route_backward) return std::make_unique<RouteKernel<RouteBackward<Real>>>();
  return std::make_unique<RouteKernel<RouteForward<Real>>>();
}

class RouteImplementation final : public operations::route::Implementation {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "cpu.generic"; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::route::FeatureSet supported() const noexcept override {
    using enum operations::route::Feature;
    return {forward,
            backward,
            f32,
            bf16,
            f16,
            f64,
            i64_ids,
            narrow_weights,
            softmax,
            sigmoid,
            sqrt_softplus,
            identity,
            by_logits,
            bias,
            groups,
            sum_of_two,
            zero_outside,
            softmax_of_chosen,
            sigmoid_of_chosen,
            sum_plus_epsilon,
            at_least_epsilon,
            routed_scaling_factor,
            scale_of_expert};
  }

  /// A few nanoseconds for each expert's exponential and place in the order, on cores that share the tokens.
  [[nodiscard]] core::Verdict judge(const RouteProblem& problem, const core::DeviceDescription& cpu) const override {
    constexpr double kCallNs = 500.0, kTokenNs = 150.0, kExpertNs = 8.0, kWorkerNs = 5e4;
    const double tokens = static_cast<double>(problem.tokens);
    const double core_ns = tokens * (kTokenNs + kExpertNs * static_cast<double>(problem.num_experts));
    const double blocks = static_cast<double>(core::ceil_div(problem.tokens, kBlockTokens));
    const double limit = std::max(1.0, std::min(static_cast<double>(cpu.threads), blocks));
    const double workers = std::clamp(core_ns / kWorkerNs, 1.0, limit);
    const double us = 1e-3 * (kCallNs + core_ns / workers);
    return core::Verdict::accept(
        us, problem.dtype == DType::f64 ? make_kernel<double>(problem) : make_kernel<float>(problem));
  }
};

}  // namespace
}  // namespace cpu

const core::Implementation& cpu_route_implementation() {
  static const cpu::RouteImplementation implementation;
  return implementation;
}

}  // namespace tilewise::backends
