// What each instruction set's kernels of formats honour, and how long they take.
#include "backends/cpu/quantize/quantize_backend.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include "backends/cpu/cost.hpp"
#include "backends/cpu/formats/quantize.hpp"
#include "operations/quantize/quantize.hpp"

namespace tilewise::backends {
namespace cpu {
namespace {

class QuantizeKernel final : public operations::quantize::Kernel {
 public:
  QuantizeKernel(const QuantizeProblem& problem, const FormatKernels& kernels)
      : kernels_(kernels), forward_(problem.pass == QuantizePass::quantize) {}

  [[nodiscard]] std::size_t workspace_size() const noexcept override { return 0; }
  [[nodiscard]] std::string schedule() const override { return "rows over threads"; }
  void launch(const operations::quantize::QuantizeParams& p, void*, void*) const override {
    if (forward_) return quantize(kernels_, p.numbers, p.format, p.quantized, p.power_of_two);
    dequantize(kernels_, p.quantized, p.format, p.numbers);
  }

 private:
  const FormatKernels& kernels_;
  bool forward_;
};

struct QuantizeTraits {
  Isa isa;
  const char* name;
  double element_ns;  // of a core, the divisions of quantising above all
};

class QuantizeImplementation final : public operations::quantize::Implementation {
 public:
  explicit QuantizeImplementation(QuantizeTraits traits) : traits_(traits), kernels_(*format_kernels(traits.isa)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return traits_.name; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::quantize::FeatureSet supported() const noexcept override {
    using enum operations::quantize::Feature;
    return {quantize,    dequantize,  f32,   bf16,  f16,   fp8_tensor,   fp8_row, fp8_1x128,
            fp8_128x128, e8m0_blocks, mxfp8, mxfp4, nvfp4, power_of_two, stacked};
  }

  [[nodiscard]] core::Verdict judge(const QuantizeProblem& problem, const core::DeviceDescription& cpu) const override {
    for (const core::DeviceDescription::Lack& lack : cpu.lacks)
      if (lack.instruction_set == to_string(traits_.isa)) return core::Verdict::refuse(lack.reason);
    return core::Verdict::accept(estimate_us(problem, cpu), std::make_unique<QuantizeKernel>(problem, kernels_));
  }

 private:
  /// Elements and memory's time on cores that share the rows. How many do depends on the bytes alone, so that which set
  /// is the best does not depend on the number of threads.
  [[nodiscard]] double estimate_us(const QuantizeProblem& problem, const core::DeviceDescription& cpu) const {
    constexpr double kCallNs = 1000.0, kWorkerBytes = 4e4, kMostGigabytes = 250.0;
    const double rows = static_cast<double>(problem.num_experts) * static_cast<double>(problem.rows);
    const double elements = rows * static_cast<double>(problem.columns);
    const double bytes = operations::quantize::bytes_moved(problem);
    const CpuTraits traits = traits_of({cpu.intel ? Processor::Vendor::intel : Processor::Vendor::other, cpu.family});
    const double limit = std::max(1.0, std::min(static_cast<double>(cpu.threads), rows));
    const double workers = std::clamp(bytes / kWorkerBytes, 1.0, limit);
    const double gigabytes =
        std::min(std::max(traits.core_gigabytes, traits.share_gigabytes * workers), kMostGigabytes);
    return 1e-3 * (kCallNs + traits_.element_ns * elements / workers + bytes / gigabytes);
  }

  QuantizeTraits traits_;
  const FormatKernels& kernels_;
};

}  // namespace
}  // namespace cpu

std::span<const core::Implementation* const> cpu_quantize_implementations() {
  using cpu::Isa, cpu::QuantizeImplementation;
#if defined(__x86_64__)
  static const QuantizeImplementation avx512({Isa::avx512, "cpu.avx512", 0.2});
  static const QuantizeImplementation avx2({Isa::avx2, "cpu.avx2", 0.4});
  static const QuantizeImplementation generic({Isa::generic, "cpu.generic", 2.0});
  static const std::array<const core::Implementation*, 3> table = {&avx512, &avx2, &generic};
#elif defined(__aarch64__)
  static const QuantizeImplementation neon({Isa::neon, "cpu.neon", 0.8});
  static const QuantizeImplementation generic({Isa::generic, "cpu.generic", 2.0});
  static const std::array<const core::Implementation*, 2> table = {&neon, &generic};
#else
  static const QuantizeImplementation generic({Isa::generic, "cpu.generic", 2.0});
  static const std::array<const core::Implementation*, 1> table = {&generic};
#endif
  return table;
}

}  // namespace tilewise::backends
