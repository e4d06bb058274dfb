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
  LinearKernel(const LinearProblem& problem, const GemmKernels& kernels)
      : kernels_(kernels),
        workspace_size_(linear_workspace_size(operations::schema::contiguous_params<operations::Linear>(problem))),
        schedule_(schedule_of(problem, kernels)) {}

  [[nodiscard]] std::size_t workspace_size() const noexcept override { return workspace_size_; }
  [[nodiscard]] std::string schedule() const override { return schedule_; }
  void launch(const LinearParams& params, void* workspace, void*) const override {
    run_linear(params, kernels_, workspace);
  }

 private:
  static std::string schedule_of(const LinearProblem& problem, const GemmKernels& kernels) {
    const ElementIndex element = element_of(problem.dtype);
    const std::string packed =
        core::concat("blocks of up to ", kGemmRows, " rows by panels of ", kernels.panel[element], " outputs");
    if (problem.batch_invariant) return packed;
    return core::concat(packed, "; weights of up to ", kernels.stream_rows[element], " rows streamed");
  }

  const GemmKernels& kernels_;
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
    operations::linear::FeatureSet set{forward, out_dtype, grouped, bias, activation, w_transposed, batch_invariant};
    if (kernels_.run[kElementF32] != nullptr) set.insert(f32);
    if (kernels_.run[kElementBf16] != nullptr) set.insert(bf16);
    if (kernels_.run[kElementF16] != nullptr) set.insert(f16);
    if (kernels_.run[kElementF64] != nullptr) set.insert(f64);
    return set;
  }

  [[nodiscard]] core::Verdict judge(const LinearProblem& problem, const core::DeviceDescription& cpu) const override {
    for (const core::DeviceDescription::Lack& lack : cpu.lacks)
      if (lack.instruction_set == to_string(traits_.isa)) return core::Verdict::refuse(lack.reason);
    return core::Verdict::accept(estimate_us(problem, cpu), std::make_unique<LinearKernel>(problem, kernels_));
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
