// The CPU implementations: one row of the table per instruction set, each refusing with what
// the processor lacks, what the system withholds, or what TILEWISE_CPU_ISA forbids.
#include "backends/cpu/cpu_backend.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "backends/cpu/backward_kernel.hpp"
#include "backends/cpu/cpu_features.hpp"
#include "backends/cpu/forward_kernel.hpp"

namespace tilewise::backends {
namespace cpu {
namespace {

/// What one core reaches, for the cost estimate: fp32-equivalent GFLOP/s in the main loop.
struct IsaTraits {
  Isa isa;
  const char* name;
  const KernelSet* kernels;
  double gflops;
};

constexpr double kReadGigabytes = 20.0;  // one core's share of memory bandwidth, GB/s

core::FeatureSet features_of(const KernelSet& kernels) {
  core::FeatureSet set = core::FeatureSet::all();
  if (!kernels.forward[kElementF32]) set = set.minus({core::Feature::f32});
  if (!kernels.forward[kElementBf16]) set = set.minus({core::Feature::bf16});
  if (!kernels.forward[kElementF16]) set = set.minus({core::Feature::f16});
  if (!kernels.forward[kElementF64]) set = set.minus({core::Feature::f64});
  return set;
}

double estimate_us(const Problem& p, double gflops) {
  const auto f = [](std::int64_t n) { return static_cast<double>(n); };
  const bool packed = p.layout == Layout::thd;
  const double rows_q = packed ? f(p.total_q) : f(p.batch_size) * f(p.seqlen_q);
  const double rows_k = packed ? f(p.total_k) : f(p.batch_size) * f(p.seqlen_k);
  double keys = f(p.seqlen_k);  // visible to a row, on average
  if (p.mask == Mask::causal) keys -= 0.5 * std::min(f(p.seqlen_q), f(p.seqlen_k));
  if (p.window_left >= 0) {
    const double right = p.mask == Mask::causal ? 0.0 : p.window_right < 0 ? f(p.seqlen_k) : f(p.window_right);
    keys = std::min(keys, f(p.window_left) + 1.0 + right);
  }
  const double products = p.operation == Operation::attention_backward ? 2.5 : 1.0;
  const double flops = 2.0 * rows_q * f(p.num_heads_q) * keys * f(p.head_dim + p.head_dim_v) * products;
  const double bytes =
      rows_k * f(p.num_heads_k) * f(p.head_dim + p.head_dim_v) * f(static_cast<std::int64_t>(size_of(p.dtype)));
  return 0.5 + 1e-3 * (flops / gflops + bytes / kReadGigabytes);
}

class CpuImplementation final : public core::Implementation {
 public:
  explicit CpuImplementation(const IsaTraits& traits) : traits_(traits) {}

  [[nodiscard]] std::string_view name() const noexcept override { return traits_.name; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] core::FeatureSet supported() const noexcept override { return features_of(*traits_.kernels); }

  [[nodiscard]] core::Verdict judge(const Problem& problem) const override {
    const IsaStatus status = isa_status(traits_.isa);
    if (!status.available) return core::Verdict::refuse(status.reason);
    const double share = problem.dtype == DType::f64 ? 0.5 : 1.0;  // half as many numbers in a vector
    return core::Verdict::accept(estimate_us(problem, share * traits_.gflops));
  }

  [[nodiscard]] std::unique_ptr<const core::Kernel> prepare(const Problem& problem) const override {
    if (problem.operation == Operation::attention_forward) return make_forward_kernel(problem, *traits_.kernels);
    return make_backward_kernel(problem, *traits_.kernels);
  }

 private:
  IsaTraits traits_;
};

}  // namespace
}  // namespace cpu

std::span<const core::Implementation* const> cpu_implementations() {
  using cpu::CpuImplementation, cpu::Isa;
#if defined(__x86_64__)
  static const CpuImplementation amx_bf16({Isa::amx_bf16, "cpu.amx_bf16", &cpu::kAmxBf16Kernels, 800.0});
  static const CpuImplementation avx512_bf16(
      {Isa::avx512_bf16, "cpu.avx512_bf16", &cpu::kAvx512Bf16Kernels, cpu::bf16_dot_is_fast() ? 180.0 : 95.0});
  static const CpuImplementation avx512({Isa::avx512, "cpu.avx512", &cpu::kAvx512Kernels, 100.0});
  static const CpuImplementation avx2({Isa::avx2, "cpu.avx2", &cpu::kAvx2Kernels, 90.0});
  static const CpuImplementation generic({Isa::generic, "cpu.generic", &cpu::kGenericKernels, 30.0});
  static const std::array<const core::Implementation*, 5> table = {&amx_bf16, &avx512_bf16, &avx512, &avx2, &generic};
#else
  static const CpuImplementation generic({Isa::generic, "cpu.generic", &cpu::kGenericKernels, 30.0});
  static const std::array<const core::Implementation*, 1> table = {&generic};
#endif
  return table;
}

}  // namespace tilewise::backends
