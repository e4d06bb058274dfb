// The CPU implementations: one row of the table per instruction set, each refusing with what
// the processor lacks, what the system withholds, or what TILEWISE_CPU_ISA forbids.
#include "backends/cpu/cpu_backend.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "backends/cpu/backward_kernel.hpp"
#include "backends/cpu/checked_kernel.hpp"
#include "backends/cpu/cost.hpp"
#include "backends/cpu/cpu_features.hpp"
#include "backends/cpu/forward_kernel.hpp"
#include "backends/cpu/selected_keys.hpp"
#include "backends/cpu/widened_forward.hpp"
#include "core/num_threads.hpp"
#include "operations/attention/attention.hpp"
#include "operations/attention/block_mask.hpp"
#include "operations/attention/rest.hpp"

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
  operations::attention::FeatureSet set{forward,      backward,  gqa,        head_dim_v, packed,        window_left,
                                        window_right, top_left,  scale_sign, softcap,    bias,          bias_boolean,
                                        dbias,        alibi,     sink,       dsink,      dropout,       seed_tensor,
                                        seqused_q,    seqused_k, leftpad_k,  dlse,       deterministic, batch_invariant,
                                        clear_rest,   score_mod, mask_mod,   dtables,    block_mask};
  if (kernels.forward[kElementF32]) set.insert(f32);
  if (kernels.add_queries[kElementF32]) set.insert(key_indices);  // gradients are summed in f32 there
  if (kernels.forward[kElementBf16]) set.insert(bf16);
  if (kernels.forward[kElementF16]) set.insert(f16);
  if (kernels.forward[kElementF64]) set.insert(f64);
  if (kernels.forward[kElementBf16]) set.insert(fp8_e4m3);
  if (kernels.forward[kElementBf16] && kernels.forward[kElementF16]) set.insert(f16_out);
  return set;
}

/// Over as many keys as are selected.
Problem dense_alike(Problem problem) {
  problem.seqlen_k = std::min(problem.seqlen_k, problem.top_k);
  problem.top_k = 0;
  return problem;
}

class CpuImplementation final : public operations::attention::Implementation {
 public:
  CpuImplementation(const IsaTraits& traits, LookUpCheck check) : traits_(traits), check_(check) {}

  [[nodiscard]] std::string_view name() const noexcept override { return traits_.name; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::attention::FeatureSet supported() const noexcept override {
    return features_of(*traits_.kernels);
  }

  [[nodiscard]] core::Verdict judge(const Problem& problem, const core::DeviceDescription& cpu) const override {
    for (const core::DeviceDescription::Lack& lack : cpu.lacks) {
      if (lack.instruction_set == to_string(traits_.isa)) return core::Verdict::refuse(lack.reason);
    }
    if (const std::string reason = refusal_of_selected(problem); !reason.empty()) return core::Verdict::refuse(reason);
    using namespace operations::attention;  // what is done before and after a kernel
    const bool masked = operations::has_block_mask(problem);
    core::Verdict verdict = judge_functions(operations::with_block_table(problem, blocked_scores(problem)), cpu);
    if (masked) verdict.kernel = expanding_block_mask(std::move(verdict.kernel), problem);
    verdict.kernel = checking_look_ups(clearing_rest(std::move(verdict.kernel), problem), problem, check_);
    return verdict;
  }

 private:
  /// Of a problem without a block mask.
  [[nodiscard]] core::Verdict judge_functions(const Problem& problem, const core::DeviceDescription& cpu) const {
    if (problem.dtype != DType::fp8_e4m3) return core::Verdict::accept(estimate_of(problem, cpu), make_kernel(problem));
    return core::Verdict::accept(estimate_of(widened(problem), cpu) + widening_us(problem) / std::max(cpu.threads, 1),
                                 make_widened_forward_kernel(problem, *traits_.kernels));
  }

  /// What the backward pass over selected keys lacks; empty where it lacks nothing.
  [[nodiscard]] std::string refusal_of_selected(const Problem& problem) const {
    if (problem.top_k == 0 || problem.operation == Operation::attention_forward) return {};
    if (problem.dbias || problem.dtables != 0) return "key_indices exclude dbias and dtables";
    return {};
  }

  [[nodiscard]] double estimate_of(const Problem& problem, const core::DeviceDescription& cpu) const {
    const CpuTraits traits = traits_of({cpu.intel ? Processor::Vendor::intel : Processor::Vendor::other, cpu.family});
    if (problem.top_k > 0)
      return kSelectedCost * estimate_us(dense_alike(problem), traits_.isa, *traits_.kernels, traits, cpu.threads);
    return estimate_us(problem, traits_.isa, *traits_.kernels, traits, cpu.threads);
  }

  [[nodiscard]] std::unique_ptr<core::Kernel> make_kernel(const Problem& problem) const {
    if (problem.operation == Operation::attention_forward) return make_forward_kernel(problem, *traits_.kernels);
    return make_backward_kernel(problem, *traits_.kernels);
  }

  IsaTraits traits_;
  LookUpCheck check_;
};

}  // namespace
}  // namespace cpu

std::span<const core::Implementation* const> cpu_implementations(LookUpCheck check) {
  using cpu::CpuImplementation, cpu::Isa;
#if defined(__x86_64__)
  static const CpuImplementation amx_bf16({Isa::amx_bf16, "cpu.amx_bf16", &cpu::kAmxBf16Kernels}, check);
  static const CpuImplementation avx512_bf16({Isa::avx512_bf16, "cpu.avx512_bf16", &cpu::kAvx512Bf16Kernels}, check);
  static const CpuImplementation avx512({Isa::avx512, "cpu.avx512", &cpu::kAvx512Kernels}, check);
  static const CpuImplementation avx2({Isa::avx2, "cpu.avx2", &cpu::kAvx2Kernels}, check);
  static const CpuImplementation generic({Isa::generic, "cpu.generic", &cpu::kGenericKernels}, check);
  static const std::array<const core::Implementation*, 5> table = {&amx_bf16, &avx512_bf16, &avx512, &avx2, &generic};
#elif defined(__aarch64__)
  static const CpuImplementation neon_bf16({Isa::neon_bf16, "cpu.neon_bf16", &cpu::kNeonBf16Kernels}, check);
  static const CpuImplementation neon({Isa::neon, "cpu.neon", &cpu::kNeonKernels}, check);
  static const CpuImplementation generic({Isa::generic, "cpu.generic", &cpu::kGenericKernels}, check);
  static const std::array<const core::Implementation*, 3> table = {&neon_bf16, &neon, &generic};
#else
  static const CpuImplementation generic({Isa::generic, "cpu.generic", &cpu::kGenericKernels}, check);
  static const std::array<const core::Implementation*, 1> table = {&generic};
#endif
  return table;
}

core::DeviceDescription describe_cpu() {
  core::DeviceDescription description;
  description.architecture = cpu::this_architecture();
  description.multiprocessors = core::num_cores();
  description.threads = std::min(core::num_threads(), core::num_cores());
  const cpu::Processor processor = cpu::this_processor();
  description.intel = processor.vendor == cpu::Processor::Vendor::intel;
  description.family = processor.family;
  for (int i = 0; i < cpu::kIsaCount; ++i) {
    const cpu::IsaStatus status = cpu::isa_status(static_cast<cpu::Isa>(i));
    if (!status.available) description.lacks.push_back({cpu::to_string(status.isa), status.reason});
  }
  return description;
}

}  // namespace tilewise::backends
