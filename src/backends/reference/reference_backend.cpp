// The reference's row of the dispatch table: accepts everything, promises nothing but correctness.
#include "backends/reference/reference_backend.hpp"

#include <memory>
#include <string>

#include "backends/reference/reference_math.hpp"
#include "operations/attention/attention.hpp"
#include "operations/attention/rest.hpp"
#include "operations/attention/work.hpp"

namespace tilewise::backends {
namespace {

class ReferenceKernel final : public operations::attention::Kernel {
 public:
  explicit ReferenceKernel(const Problem& problem) : problem_(problem), numbers_(problem) {}
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return 0; }
  [[nodiscard]] std::string schedule() const override {
    return forward() ? "f64, one query row at a time" : "f64, one key head of one sequence at a time";
  }
  void launch(const device::AttentionParams& params, void*, void*) const override {
    if (problem_.block_mask.rows != 0 && core::checks_requested()) {
      operations::check_block_lists(params.block_mask, operations::attention::blocked_scores(problem_));
    }
    forward() ? reference::forward(params, numbers_) : reference::backward(params, numbers_, problem_);
  }

 private:
  [[nodiscard]] bool forward() const { return problem_.operation == Operation::attention_forward; }

  Problem problem_;
  reference::Numbers numbers_;
};

class ReferenceImplementation final : public operations::attention::Implementation {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "reference"; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::attention::FeatureSet supported() const noexcept override { return reference::features(); }

  /// The order of magnitude, on one thread. Each cost is above what any faster implementation has in its place.
  [[nodiscard]] core::Verdict judge(const Problem& problem, const core::DeviceDescription&) const override {
    constexpr operations::attention::ScalarCosts kCosts{20.0, 1.0, 0.02, 0.02, 1.0 / 1500.0};
    return core::Verdict::accept(
        operations::attention::scalar_us(problem, kCosts),
        operations::attention::clearing_rest(std::make_unique<ReferenceKernel>(problem), problem));
  }
};

}  // namespace

const core::Implementation& reference_implementation() {
  static const ReferenceImplementation implementation;
  return implementation;
}

}  // namespace tilewise::backends
