// Every quantize problem, number by number.
#include "backends/reference/quantize/quantize_backend.hpp"

#include <memory>

#include "formats/quantize.hpp"
#include "operations/quantize/quantize.hpp"

namespace tilewise::backends {
namespace reference {
namespace {

class QuantizeKernel final : public operations::quantize::Kernel {
 public:
  explicit QuantizeKernel(const QuantizeProblem& problem) : forward_(problem.pass == QuantizePass::quantize) {}
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return 0; }
  [[nodiscard]] std::string schedule() const override { return "one number at a time"; }
  void launch(const operations::quantize::QuantizeParams& p, void*, void*) const override {
    if (forward_) return formats::quantize(p.numbers, p.format, p.quantized, p.power_of_two);
    formats::dequantize(p.quantized, p.format, p.numbers);
  }

 private:
  bool forward_;
};

class QuantizeImplementation final : public operations::quantize::Implementation {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "reference"; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::quantize::FeatureSet supported() const noexcept override {
    using enum operations::quantize::Feature;
    return {quantize,    dequantize,  f32,   bf16,  f16,   fp8_tensor,   fp8_row, fp8_1x128,
            fp8_128x128, e8m0_blocks, mxfp8, mxfp4, nvfp4, power_of_two, stacked};
  }

  /// The order of magnitude, on one thread.
  [[nodiscard]] core::Verdict judge(const QuantizeProblem& problem, const core::DeviceDescription&) const override {
    constexpr double kCallUs = 20.0, kByteUs = 2e-2;
    return core::Verdict::accept(kCallUs + kByteUs * operations::quantize::bytes_moved(problem),
                                 std::make_unique<QuantizeKernel>(problem));
  }
};

}  // namespace
}  // namespace reference

const core::Implementation& reference_quantize_implementation() {
  static const reference::QuantizeImplementation implementation;
  return implementation;
}

}  // namespace tilewise::backends
