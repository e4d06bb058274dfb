// The CPU implementations: one row of the table per instruction set, each refusing with what
// the processor lacks, what the system withholds, or what TILEWISE_CPU_ISA forbids.
#include "backends/cpu/cpu_backend.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "backends/cpu/backward_kernel.hpp"
#include "backends/cpu/cost.hpp"
#include "backends/cpu/cpu_features.hpp"
#include "backends/cpu/forward_kernel.hpp"
#include "core/num_threads.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends {
namespace cpu {
namespace {

struct IsaTraits {
  Isa isa;
  const char* name;
  const KernelSet* kernels;
};

operations::attention::FeatureSet features_of(const KernelSet& kernels) {
  using enum operations::attention::Feature;
  operations::attention::FeatureSet set{
      forward,    backward,    gqa,       head_dim_v,   packed,    window_left, window_right,  top_left,
      scale_sign, softcap,     bias,      bias_boolean, dbias,     alibi,       sink,          dsink,
      dropout,    seed_tensor, seqused_q, seqused_k,    leftpad_k, dlse,        deterministic, batch_invariant};
  if (kernels.forward[kElementF32]) set.insert(f32);
  if (kernels.forward[kElementBf16]) set.insert(bf16);
  if (kernels.forward[kElementF16]) set.insert(f16);
  if (kernels.forward[kElementF64]) set.insert(f64);
  return set;
}

class CpuImplementation final : public operations::attention::Implementation {
 public:
  CpuImplementation(const IsaTraits& traits, const CpuTraits& cpu) : traits_(traits), cpu_(cpu) {}

  [[nodiscard]] std::string_view name() const noexcept override { return traits_.name; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::attention::FeatureSet supported() const noexcept override {
    return features_of(*traits_.kernels);
  }

  [[nodiscard]] core::Verdict judge(const Problem& problem) const override {
    const IsaStatus status = isa_status(traits_.isa);
    if (!status.available) return core::Verdict::refuse(status.reason);
    const int threads = std::min(core::num_threads(), core::num_cores());
    return core::Verdict::accept(estimate_us(problem, traits_.isa, *traits_.kernels, cpu_, threads));
  }

  [[nodiscard]] std::unique_ptr<const core::Kernel> prepare(const Problem& problem) const override {
    if (problem.operation == Operation::attention_forward) return make_forward_kernel(problem, *traits_.kernels);
    return make_backward_kernel(problem, *traits_.kernels);
  }

 private:
  IsaTraits traits_;
  const CpuTraits& cpu_;
};

}  // namespace
}  // namespace cpu

std::span<const core::Implementation* const> cpu_implementations() {
  using cpu::CpuImplementation, cpu::Isa;
  static const cpu::CpuTraits traits = cpu::traits_of(cpu::this_processor());
#if defined(__x86_64__)
  static const CpuImplementation amx_bf16({Isa::amx_bf16, "cpu.amx_bf16", &cpu::kAmxBf16Kernels}, traits);
  static const CpuImplementation avx512_bf16({Isa::avx512_bf16, "cpu.avx512_bf16", &cpu::kAvx512Bf16Kernels}, traits);
  static const CpuImplementation avx512({Isa::avx512, "cpu.avx512", &cpu::kAvx512Kernels}, traits);
  static const CpuImplementation avx2({Isa::avx2, "cpu.avx2", &cpu::kAvx2Kernels}, traits);
  static const CpuImplementation generic({Isa::generic, "cpu.generic", &cpu::kGenericKernels}, traits);
  static const std::array<const core::Implementation*, 5> table = {&amx_bf16, &avx512_bf16, &avx512, &avx2, &generic};
#else
  static const CpuImplementation generic({Isa::generic, "cpu.generic", &cpu::kGenericKernels}, traits);
  static const std::array<const core::Implementation*, 1> table = {&generic};
#endif
  return table;
}

}  // namespace tilewise::backends
