// Rows of packed results past the last cu_seqlens become 0, their log-sum-exp -infinity.
#include "operations/attention/rest.hpp"

#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "operations/elements.hpp"

namespace tilewise::operations::attention {
namespace {

void clear_rows(const device::Tensor4& to, DType dtype, std::int64_t first, std::int64_t end, std::int64_t heads,
                std::int64_t dim) {
  if (to.data == nullptr) return;
  const std::size_t element = size_of(dtype);
  for (std::int64_t row = first; row < end; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t at = row * to.seq_stride + head * to.head_stride;
      std::memset(static_cast<std::byte*>(to.data) + static_cast<std::size_t>(at) * element, 0,
                  static_cast<std::size_t>(dim) * element);
    }
  }
}

class RestClearingKernel final : public Kernel {
 public:
  RestClearingKernel(std::unique_ptr<core::Kernel> kernel, const AttentionProblem& problem)
      : kernel_(std::move(kernel)),
        backward_(problem.operation == Operation::attention_backward),
        dtype_(out_dtype_of(problem)),
        lse_dtype_(statistics_dtype(problem.dtype)) {}

  [[nodiscard]] std::string obstacle() const override { return kernel_->obstacle(); }
  void load() override { kernel_->load(); }
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return kernel_->workspace_size(); }
  [[nodiscard]] std::string schedule() const override { return kernel_->schedule(); }

  void launch(const device::AttentionParams& p, void* workspace, void* stream) const override {
    kernel_->launch_on(&p, workspace, stream);
    const std::int64_t first_q = p.cu_seqlens_q[p.batch_size], first_k = p.cu_seqlens_k[p.batch_size];
    if (backward_) {
      clear_rows(p.dq, dtype_, first_q, p.total_q, p.num_heads_q, p.head_dim);
      clear_rows(p.dk, dtype_, first_k, p.total_k, p.num_heads_k, p.head_dim);
      clear_rows(p.dv, dtype_, first_k, p.total_k, p.num_heads_k, p.head_dim_v);
      return;
    }
    clear_rows(p.out, dtype_, first_q, p.total_q, p.num_heads_q, p.head_dim_v);
    if (p.softmax_lse.data == nullptr) return;
    for (std::int64_t head = 0; head < p.num_heads_q; ++head) {
      for (std::int64_t row = first_q; row < p.total_q; ++row) {
        const std::int64_t at = head * p.softmax_lse.head_stride + row * p.softmax_lse.seq_stride;
        store_element(lse_dtype_, p.softmax_lse.data, at, -std::numeric_limits<double>::infinity());
      }
    }
  }

 private:
  std::unique_ptr<core::Kernel> kernel_;
  bool backward_;
  DType dtype_, lse_dtype_;
};

}  // namespace

std::unique_ptr<core::Kernel> clearing_rest(std::unique_ptr<core::Kernel> kernel, const AttentionProblem& problem) {
  if (!problem.clear_rest) return kernel;
  return std::make_unique<RestClearingKernel>(std::move(kernel), problem);
}

}  // namespace tilewise::operations::attention
