// What each instruction set's kernels of linear layers honour, and how long they take.
#include "backends/cpu/linear/linear_backend.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "backends/cpu/cost.hpp"
#include "backends/cpu/gemm/grouped_product.hpp"
#include "backends/cpu/linear/linear_kernel.hpp"
#include "backends/cpu/rows.hpp"
#include "core/message.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/linear/linear.hpp"

namespace tilewise::backends {
namespace cpu {
namespace {

using operations::linear::LinearParams;

class LinearKernel final : public operations::linear::Kernel {
 public:
  LinearKernel(const LinearProblem& problem, const GemmKernels& kernels, const GemmKernel& kernel)
      : kernels_(kernels),
        backward_(problem.pass == LinearPass::linear_backward),
        workspace_size_(workspace_size_of(operations::schema::contiguous_params<operations::Linear>(problem))),
        schedule_(schedule_of(problem, kernel)) {}

  [[nodiscard]] std::size_t workspace_size() const noexcept override { return workspace_size_; }
  [[nodiscard]] std::string schedule() const override { return schedule_; }
  void launch(const LinearParams& params, void* workspace, void*) const override {
    backward_ ? run_linear_backward(params, kernels_, workspace) : run_linear(params, kernels_, workspace);
  }

 private:
  [[nodiscard]] std::size_t workspace_size_of(const LinearParams& params) const {
    return backward_ ? linear_backward_workspace_size(params) : linear_workspace_size(params);
  }
  static std::string schedule_of(const LinearProblem& problem, const GemmKernel& kernel) {
    const std::string packed =
        core::concat("blocks of up to ", kGemmRows, " rows by panels of ", kernel.panel, " outputs");
    if (problem.batch_invariant) return packed;
    return core::concat(packed, "; weights of up to ", kernel.stream_rows, " rows streamed");
  }

  const GemmKernels& kernels_;
  bool backward_;
  std::size_t workspace_size_;
  std::string schedule_;
};

struct LinearTraits {
  Isa isa;
  const char* name;
};

class LinearImplementation final : public operations::linear::Implementation {
 public:
  explicit LinearImplementation(LinearTraits traits) : traits_(traits), kernels_(gemm_kernels_of(traits.isa)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return traits_.name; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::linear::FeatureSet supported() const noexcept override {
    using enum operations::linear::Feature;
    operations::linear::FeatureSet set{
        forward,    backward,     backward_quantised, dx,         dw,      dbias,     out_dtype,   grouped,     bias,
        activation, w_transposed, batch_invariant,    fp8_tensor, fp8_row, fp8_1x128, fp8_128x128, e8m0_blocks, mxfp8,
        mxfp4,      nvfp4};
    const auto insert = [&](operations::linear::Feature feature, DType dtype) {
      if (gemm_kernel(kernels_, dtype, dtype) != nullptr) set.insert(feature);
    };
    insert(f32, DType::f32);
    insert(bf16, DType::bf16);
    insert(f16, DType::f16);
    insert(f64, DType::f64);
    insert(x_quantised, DType::fp8_e4m3);
    return set;
  }

  [[nodiscard]] core::Verdict judge(const LinearProblem& problem, const core::DeviceDescription& cpu) const override {
    for (const core::DeviceDescription::Lack& lack : cpu.lacks)
      if (lack.instruction_set == to_string(traits_.isa)) return core::Verdict::refuse(lack.reason);
    const DType w = operations::linear::w_dtype(problem);
    const GemmKernel* kernel = gemm_kernel(kernels_, problem.dtype, w);
    if (kernel == nullptr) {
      return core::Verdict::refuse(core::concat("has no products of ", to_string(problem.dtype), " by ", to_string(w)));
    }
    if (problem.w_transposed && problem.w_format == parse_block_format("mxfp8"))
      return core::Verdict::refuse("scales of 32 elements want them contiguous, n is (w_transposed)");
    // Gradients are sums over the rows that such scales are of.
    if (problem.w_transposed && problem.pass == LinearPass::linear_backward && problem.w_format.block_rows == 1)
      return core::Verdict::refuse("gradients want rows with scales of their own contiguous, n is (w_transposed)");
    return core::Verdict::accept(estimate_us(problem, cpu), std::make_unique<LinearKernel>(problem, kernels_, *kernel));
  }

 private:
  /// Products at the set's rate, weights and rows at memory's, on as many threads as the fastest set's work deserves:
  /// which set is the best does not depend on their number.
  [[nodiscard]] double estimate_us(const LinearProblem& problem, const core::DeviceDescription& cpu) const {
    constexpr double kCallNs = 1000.0, kWorkerNs = 5e3, kWakeNs = 30e3, kMostGigabytes = 250.0;
    const CpuTraits traits = traits_of({cpu.intel ? Processor::Vendor::intel : Processor::Vendor::other, cpu.family});
    const double flops = operations::linear::flops(problem), bytes = operations::linear::bytes_moved(problem);
    const double width = problem.dtype == DType::f64 ? 2.0 : 1.0;  // a vector holds half as many doubles
    const auto core_ns = [&](Isa isa) {
      return width * flops / traits.rates[static_cast<std::size_t>(isa)].flops_a_cycle / traits.gigahertz;
    };
    const double least_ns = core_ns(Isa::amx_bf16) + bytes / traits.core_gigabytes;
    const double workers = std::clamp(least_ns / kWorkerNs, 1.0, static_cast<double>(std::max(cpu.threads, 1)));
    const double gigabytes =
        std::min(std::max(traits.core_gigabytes, traits.share_gigabytes * workers), kMostGigabytes);
    const double ns = kCallNs + core_ns(traits_.isa) / workers + bytes / gigabytes + kWakeNs * (1.0 - 1.0 / workers);
    return 1e-3 * ns;
  }

  LinearTraits traits_;
  const GemmKernels& kernels_;
};

}  // namespace
}  // namespace cpu

std::span<const core::Implementation* const> cpu_linear_implementations() {
  using cpu::Isa, cpu::LinearImplementation;
#if defined(__x86_64__)
  static const LinearImplementation amx_bf16({Isa::amx_bf16, "cpu.amx_bf16"});
  static const LinearImplementation avx512_bf16({Isa::avx512_bf16, "cpu.avx512_bf16"});
  static const LinearImplementation avx512({Isa::avx512, "cpu.avx512"});
  static const LinearImplementation avx2({Isa::avx2, "cpu.avx2"});
  static const LinearImplementation generic({Isa::generic, "cpu.generic"});
  static const std::array<const core::Implementation*, 5> table = {&amx_bf16, &avx512_bf16, &avx512, &avx2, &generic};
#elif defined(__aarch64__)
  static const LinearImplementation neon_bf16({Isa::neon_bf16, "cpu.neon_bf16"});
  static const LinearImplementation neon({Isa::neon, "cpu.neon"});
  static const LinearImplementation generic({Isa::generic, "cpu.generic"});
  static const std::array<const core::Implementation*, 3> table = {&neon_bf16, &neon, &generic};
#else
  static const LinearImplementation generic({Isa::generic, "cpu.generic"});
  static const std::array<const core::Implementation*, 1> table = {&generic};
#endif
  return table;
}

}  // namespace tilewise::backends
