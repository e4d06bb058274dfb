// What each instruction set's kernels of linear layers honour, and how long they take.
#include "backends/cpu/linear/linear_backend.hpp"

#include <memory>
#include <string>

#include "backends/cpu/gemm/gemm_rows.hpp"
#include "backends/cpu/linear/linear_kernel.hpp"
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
        schedule_(schedule_of(kernel, problem.batch_invariant)) {}

  [[nodiscard]] std::size_t workspace_size() const noexcept override { return workspace_size_; }
  [[nodiscard]] std::string schedule() const override { return schedule_; }
  void launch(const LinearParams& params, void* workspace, void*) const override {
    backward_ ? run_linear_backward(params, kernels_, workspace) : run_linear(params, kernels_, workspace);
  }

 private:
  [[nodiscard]] std::size_t workspace_size_of(const LinearParams& params) const {
    return backward_ ? linear_backward_workspace_size(params) : linear_workspace_size(params);
  }

  const GemmKernels& kernels_;
  bool backward_;
  std::size_t workspace_size_;
  std::string schedule_;
};

class LinearImplementation final : public operations::linear::Implementation {
 public:
  explicit LinearImplementation(GemmIsa isa) : isa_(isa), kernels_(gemm_kernels_of(isa.isa)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return isa_.name; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::linear::FeatureSet supported() const noexcept override {
    using enum operations::linear::Feature;
    operations::linear::FeatureSet set{
        forward,    backward,     backward_quantised, dx,         dw,      dbias,     out_dtype,   grouped,     bias,
        activation, w_transposed, batch_invariant,    fp8_tensor, fp8_row, fp8_1x128, fp8_128x128, e8m0_blocks, mxfp8,
        mxfp4,      nvfp4};
    insert_rows(set, kernels_);
    return set;
  }

  [[nodiscard]] core::Verdict judge(const LinearProblem& problem, const core::DeviceDescription& cpu) const override {
    if (const auto lack = lack_of(isa_.isa, cpu)) return core::Verdict::refuse(*lack);
    const DType w = operations::linear::w_dtype(problem);
    const GemmKernel* kernel = gemm_kernel(kernels_, problem.dtype, w);
    if (kernel == nullptr) {
      return core::Verdict::refuse(core::concat("has no products of ", to_string(problem.dtype), " by ", to_string(w)));
    }
    if (problem.w_transposed) {
      const auto refusal = refusal_of_transposed(problem.w_format, problem.pass == LinearPass::linear_backward);
      if (!refusal.empty()) return core::Verdict::refuse(core::concat(refusal, ", n is (w_transposed)"));
    }
    const double us = gemm_estimate_us(isa_.isa, operations::linear::flops(problem),
                                       operations::linear::bytes_moved(problem), problem.dtype == DType::f64, cpu);
    return core::Verdict::accept(us, std::make_unique<LinearKernel>(problem, kernels_, *kernel));
  }

 private:
  GemmIsa isa_;
  const GemmKernels& kernels_;
};

}  // namespace
}  // namespace cpu

std::span<const core::Implementation* const> cpu_linear_implementations() {
  return cpu::rows_of_gemm_isas<cpu::LinearImplementation>();
}

}  // namespace tilewise::backends
