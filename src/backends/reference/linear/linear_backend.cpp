// Every linear problem, at the price of doubles one by one.
#include "backends/reference/linear/linear_backend.hpp"

#include <memory>

#include "backends/reference/linear/reference_linear.hpp"
#include "operations/linear/linear.hpp"

namespace tilewise::backends {
namespace reference {
namespace {

class LinearKernel final : public operations::linear::Kernel {
 public:
  explicit LinearKernel(const LinearProblem& problem) : backward_(problem.pass == LinearPass::linear_backward) {}
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return 0; }
  [[nodiscard]] std::string schedule() const override { return "f64, one output at a time"; }
  void launch(const operations::linear::LinearParams& params, void*, void*) const override {
    backward_ ? linear_backward(params) : linear_forward(params);
  }

 private:
  bool backward_;
};

class LinearImplementation final : public operations::linear::Implementation {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "reference"; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::linear::FeatureSet supported() const noexcept override {
    using enum operations::linear::Feature;
    return {forward,
            backward,
            f32,
            bf16,
            f16,
            f64,
            out_dtype,
            x_quantised,
            fp8_tensor,
            fp8_row,
            fp8_1x128,
            fp8_128x128,
            e8m0_blocks,
            mxfp8,
            mxfp4,
            nvfp4,
            grouped,
            bias,
            activation,
            w_transposed,
            batch_invariant,
            dx,
            backward_quantised,
            dw,
            dbias};
  }

  /// The order of magnitude, on one thread. Each cost is above what any faster implementation has in its place.
  [[nodiscard]] core::Verdict judge(const LinearProblem& problem, const core::DeviceDescription&) const override {
    constexpr double kCallUs = 20.0, kFlopUs = 5e-3, kByteUs = 1e-3;
    return core::Verdict::accept(
        kCallUs + kFlopUs * operations::linear::flops(problem) + kByteUs * operations::linear::bytes_moved(problem),
        std::make_unique<LinearKernel>(problem));
  }
};

}  // namespace
}  // namespace reference

const core::Implementation& reference_linear_implementation() {
  static const reference::LinearImplementation implementation;
  return implementation;
}

}  // namespace tilewise::backends
