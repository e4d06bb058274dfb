// Every problem of experts, at the price of doubles one by one.
#include "backends/reference/moe/moe_backend.hpp"

#include <memory>

#include "backends/reference/moe/reference_moe.hpp"
#include "operations/moe/moe.hpp"

namespace tilewise::backends {
namespace reference {
namespace {

class MoeKernel final : public operations::moe::Kernel {
 public:
  explicit MoeKernel(const MoeProblem& problem) : backward_(problem.pass == MoePass::moe_backward) {}
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return 0; }
  [[nodiscard]] std::string schedule() const override { return "f64, one token at one expert at a time"; }
  void launch(const operations::moe::MoeParams& params, void*, void*) const override {
    backward_ ? moe_backward(params) : moe_forward(params);
  }

 private:
  bool backward_;
};

class MoeImplementation final : public operations::moe::Implementation {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "reference"; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::moe::FeatureSet supported() const noexcept override {
    using enum operations::moe::Feature;
    return {forward,
            backward,
            f32,
            bf16,
            f16,
            f64,
            out_dtype,
            x_quantised,
            h_quantised,
            fp8_tensor,
            fp8_row,
            fp8_1x128,
            fp8_128x128,
            e8m0_blocks,
            mxfp8,
            mxfp4,
            nvfp4,
            no_gate,
            interleaved,
            activation,
            swiglu_oai,
            clamp,
            bias,
            norm,
            weight_on_input,
            first_expert,
            transposed,
            batch_invariant,
            save_gate_up,
            dx,
            dtopk_weights,
            dweights,
            dbias};
  }

  /// The order of magnitude, on one thread. Each cost is above what any faster implementation has in its place.
  [[nodiscard]] core::Verdict judge(const MoeProblem& problem, const core::DeviceDescription&) const override {
    constexpr double kCallUs = 20.0, kFlopUs = 5e-3, kByteUs = 1e-3;
    return core::Verdict::accept(
        kCallUs + kFlopUs * operations::moe::flops(problem) + kByteUs * operations::moe::bytes_moved(problem),
        std::make_unique<MoeKernel>(problem));
  }
};

}  // namespace
}  // namespace reference

const core::Implementation& reference_moe_implementation() {
  static const reference::MoeImplementation implementation;
  return implementation;
}

}  // namespace tilewise::backends
