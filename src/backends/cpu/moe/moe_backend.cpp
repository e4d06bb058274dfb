// What each instruction set's kernels of experts honour, and how long they take.
#include "backends/cpu/moe/moe_backend.hpp"

#include <memory>
#include <string>

#include "backends/cpu/gemm/gemm_rows.hpp"
#include "backends/cpu/moe/moe_kernel.hpp"
#include "core/message.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/moe/moe.hpp"

namespace tilewise::backends {
namespace cpu {
namespace {

using operations::moe::MoeParams;

/// What rows of the second product are in.
DType intermediate_dtype(const MoeProblem& problem) {
  if (problem.h_format.defined()) return problem.h_format.element;
  return problem.x_format.defined() ? DType::bf16 : problem.dtype;
}

class MoeKernel final : public operations::moe::Kernel {
 public:
  MoeKernel(const MoeProblem& problem, const GemmKernels& kernels, const GemmKernel& first)
      : kernels_(kernels),
        backward_(problem.pass == MoePass::moe_backward),
        workspace_size_(size_of_workspace(problem)),
        schedule_("tokens by expert, " + schedule_of(first, problem.batch_invariant)) {}

  [[nodiscard]] std::size_t workspace_size() const noexcept override { return workspace_size_; }
  [[nodiscard]] std::string schedule() const override { return schedule_; }
  void launch(const MoeParams& params, void* workspace, void*) const override {
    backward_ ? run_moe_backward(params, kernels_, workspace) : run_moe(params, kernels_, workspace);
  }

 private:
  static std::size_t size_of_workspace(const MoeProblem& problem) {
    const MoeParams params = operations::schema::contiguous_params<operations::Moe>(problem);
    return problem.pass == MoePass::moe_backward ? moe_backward_workspace_size(params) : moe_workspace_size(params);
  }

  const GemmKernels& kernels_;
  bool backward_;
  std::size_t workspace_size_;
  std::string schedule_;
};

class MoeImplementation final : public operations::moe::Implementation {
 public:
  explicit MoeImplementation(GemmIsa isa) : isa_(isa), kernels_(gemm_kernels_of(isa.isa)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return isa_.name; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::moe::FeatureSet supported() const noexcept override {
    using enum operations::moe::Feature;
    operations::moe::FeatureSet set{forward,       backward,        out_dtype,    h_quantised, fp8_tensor,      fp8_row,
                                    fp8_1x128,     fp8_128x128,     e8m0_blocks,  mxfp8,       mxfp4,           nvfp4,
                                    no_gate,       interleaved,     activation,   swiglu_oai,  clamp,           bias,
                                    norm,          weight_on_input, first_expert, transposed,  batch_invariant, dx,
                                    dtopk_weights, dweights,        dbias,        save_gate_up};
    insert_rows(set, kernels_);
    return set;
  }

  [[nodiscard]] core::Verdict judge(const MoeProblem& problem, const core::DeviceDescription& cpu) const override {
    if (const auto lack = lack_of(isa_.isa, cpu)) return core::Verdict::refuse(*lack);
    const DType w = operations::moe::weight_dtype(problem);
    for (const DType rows : {problem.dtype, intermediate_dtype(problem)}) {
      if (gemm_kernel(kernels_, rows, w) == nullptr)
        return core::Verdict::refuse(core::concat("has no products of ", to_string(rows), " by ", to_string(w)));
    }
    if (problem.gate_up_transposed || problem.down_transposed) {
      const auto refusal = refusal_of_transposed(problem.w_format, problem.pass == MoePass::moe_backward);
      if (!refusal.empty())
        return core::Verdict::refuse(core::concat(refusal, " (gate_up_transposed, down_transposed)"));
    }
    const double us = gemm_estimate_us(isa_.isa, operations::moe::flops(problem), operations::moe::bytes_moved(problem),
                                       problem.dtype == DType::f64, cpu);
    return core::Verdict::accept(
        us, std::make_unique<MoeKernel>(problem, kernels_, *gemm_kernel(kernels_, problem.dtype, w)));
  }

 private:
  GemmIsa isa_;
  const GemmKernels& kernels_;
};

}  // namespace
}  // namespace cpu

std::span<const core::Implementation* const> cpu_moe_implementations() {
  return cpu::rows_of_gemm_isas<cpu::MoeImplementation>();
}

}  // namespace tilewise::backends
