// The backward pass on the CPU; see backward_kernel.hpp.
//
// One task owns a key head of one sequence (or a part of its keys) and walks its key blocks;
// dk and dv are complete when a block's queries have passed. dq accumulates in fp32: in the
// task's own scratch where it owns all keys, else one copy a part, summed in order at the end.
#include "backends/cpu/backward_kernel.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "backends/cpu/bias_gradient.hpp"
#include "backends/cpu/gradient_rows.hpp"
#include "backends/cpu/rows.hpp"
#include "core/parallel.hpp"

namespace tilewise::backends::cpu {
namespace {

constexpr std::int64_t kWantedTasks = 16;  // below this, the keys of a head are shared out
constexpr std::int64_t kMaxParts = 8;
constexpr std::int64_t kRowPadding = 16;  // rows a kernel may scribble on past a head's dq

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Parts the keys of one head are cut into: by the problem alone, so that results do not depend
/// on the machine, and not by its batch where the caller asks for batch invariance.
std::int64_t key_parts(const Problem& p, std::int64_t block_keys) {
  const std::int64_t tasks = std::max<std::int64_t>(p.num_heads_k * (p.batch_invariant ? 1 : p.batch_size), 1);
  const std::int64_t wanted = std::clamp<std::int64_t>(ceil_div(kWantedTasks, tasks), 1, kMaxParts);
  if (p.batch_invariant) return wanted;
  return std::clamp<std::int64_t>(ceil_div(p.seqlen_k, 2 * block_keys), 1, wanted);
}

class BackwardKernel final : public core::Kernel {
 public:
  BackwardKernel(const Problem& problem, const KernelSet& kernels)
      : kernels_(kernels),
        element_(element_of(problem.dtype)),
        parts_(key_parts(problem, kernels.backward_keys)),
        dq_stride_(ceil_div(problem.head_dim, 16) * 16),
        dq_rows_((problem.layout == Layout::thd ? problem.total_q : problem.batch_size * problem.seqlen_q) +
                 problem.batch_size * kRowPadding),
        num_heads_(problem.num_heads_q),
        wants_dq_(problem.dq),
        kernel_scratch_(kernels.backward_scratch[element_](static_cast<std::int32_t>(problem.head_dim),
                                                           static_cast<std::int32_t>(problem.head_dim_v))) {
    flops_ = 2.5 * forward_flops(problem);
  }

  [[nodiscard]] std::size_t workspace_size() const noexcept override {
    if (parts_ == 1 || !wants_dq_) return 0;
    return static_cast<std::size_t>(parts_ * num_heads_ * dq_rows_ * dq_stride_) * sizeof(float);
  }

  [[nodiscard]] std::string schedule() const override {
    return "blocks of " + std::to_string(kernels_.backward_keys) + " keys x " + std::to_string(kernels_.backward_rows) +
           " queries, " + std::to_string(parts_) + (parts_ == 1 ? " part" : " parts") + " a key head";
  }

  void launch(const device::AttentionParams& p, void* workspace, void*) const override {
    const ScoreParams score = make_score_params(p);
    const int workers = workers_for(flops_);
    const std::int64_t heads = p.batch_size * p.num_heads_k;
    if (p.dq.data || p.dk.data || p.dv.data) {
      core::parallel_for(heads * parts_, workers, [&](std::int64_t task, int) {
        const std::int64_t part = task / heads, head = task % heads;
        run_head(p, score, static_cast<float*>(workspace), head / p.num_heads_k, head % p.num_heads_k, part);
      });
    }
    if (parts_ > 1 && p.dq.data) {
      core::parallel_for(p.batch_size * p.num_heads_q, workers, [&](std::int64_t task, int) {
        sum_parts(p, static_cast<float*>(workspace), task / p.num_heads_q, task % p.num_heads_q);
      });
    }
    if (p.dbias.data) accumulate_dbias(p, score, kernels_, element_, kernel_scratch_, workers);
    if (p.dsink) accumulate_dsink(p, kernels_, element_, workers);
  }

 private:
  void run_head(const device::AttentionParams& p, const ScoreParams& score, float* workspace, std::int64_t batch,
                std::int64_t head_k, std::int64_t part) const {
    const device::Sequence s = device::sequence_of(p, batch);
    const std::int64_t group = p.num_heads_q / p.num_heads_k;
    const GradientRows rows(p, kernels_, element_, batch, s);
    if (part == 0) rows.clear_unused(head_k, group);

    // Scratch: the kernel's own, then the rows' statistics, then dq where the task owns it.
    const std::int64_t statistics = group * s.seqlen_q;
    const bool owns_dq = p.dq.data && parts_ == 1;
    const std::size_t floats = static_cast<std::size_t>(
        2 * ceil_div(statistics, 16) * 16 + (owns_dq ? group * (s.seqlen_q + kRowPadding) * dq_stride_ : 0));
    auto* scratch = static_cast<std::byte*>(thread_scratch(kernel_scratch_ + floats * sizeof(float)));
    auto* lse = reinterpret_cast<float*>(scratch + kernel_scratch_);
    float* delta = lse + ceil_div(statistics, 16) * 16;
    float* own_dq = delta + ceil_div(statistics, 16) * 16;
    for (std::int64_t h = 0; h < group; ++h) {
      rows.statistics(head_k * group + h, 0, s.seqlen_q, lse + h * s.seqlen_q, delta + h * s.seqlen_q);
      if (p.dq.data) {
        float* dq = owns_dq ? own_dq + h * (s.seqlen_q + kRowPadding) * dq_stride_
                            : part_dq(workspace, p, batch, head_k * group + h, part);
        for (std::int64_t i = 0; i < s.seqlen_q && !core::abandoned(); i += kRowsBetweenQuestions) {
          const std::int64_t count = std::min(kRowsBetweenQuestions, s.seqlen_q - i);
          std::memset(dq + i * dq_stride_, 0, static_cast<std::size_t>(count * dq_stride_) * sizeof(float));
        }
      }
    }
    const std::int64_t block_keys = kernels_.backward_keys;
    const std::int64_t part_keys = ceil_div(ceil_div(s.seqlen_k, block_keys), parts_) * block_keys;
    const std::int64_t last = std::min(s.seqlen_k, (part + 1) * part_keys);
    for (std::int64_t key = part * part_keys; key < last; key += block_keys) {
      if (core::abandoned()) return;
      const KeyBlock block = rows.key_block(score, head_k, key, std::min(block_keys, last - key));
      kernels_.begin_keys[element_](block, scratch);
      for (std::int64_t h = 0; h < group; ++h) {
        const std::int64_t head = head_k * group + h;
        float* dq = !p.dq.data ? nullptr
                    : owns_dq  ? own_dq + h * (s.seqlen_q + kRowPadding) * dq_stride_
                               : part_dq(workspace, p, batch, head, part);
        rows.add_queries(block, head, lse + h * s.seqlen_q, delta + h * s.seqlen_q, dq, dq_stride_, scratch);
      }
      rows.finish_keys(block, head_k, key, scratch);
    }
    if (!owns_dq) return;
    for (std::int64_t h = 0; h < group; ++h)
      for (std::int64_t i = 0; i < s.seqlen_q; ++i)
        rows.store_dq(own_dq + (h * (s.seqlen_q + kRowPadding) + i) * dq_stride_, i, head_k * group + h);
  }

  /// dq of one part, [part][head][row][dq_stride]; the rows of all sequences follow each other, each
  /// sequence's with its padding.
  [[nodiscard]] float* part_dq(float* workspace, const device::AttentionParams& p, std::int64_t batch,
                               std::int64_t head, std::int64_t part) const {
    const std::int64_t first = p.cu_seqlens_q ? device::sequence_of(p, batch).q_row : batch * p.seqlen_q;
    return workspace + ((part * num_heads_ + head) * dq_rows_ + first + batch * kRowPadding) * dq_stride_;
  }

  void sum_parts(const device::AttentionParams& p, float* workspace, std::int64_t batch, std::int64_t head) const {
    const device::Sequence s = device::sequence_of(p, batch);
    const GradientRows rows(p, kernels_, element_, batch, s);
    float* total = part_dq(workspace, p, batch, head, 0);
    for (std::int64_t part = 1; part < parts_; ++part) {
      const float* more = part_dq(workspace, p, batch, head, part);
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        if (i % kRowsBetweenQuestions == 0 && core::abandoned()) return;
        for (std::int64_t n = i * dq_stride_; n < (i + 1) * dq_stride_; ++n) total[n] += more[n];
      }
    }
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) rows.store_dq(total + i * dq_stride_, i, head);
  }

  const KernelSet& kernels_;
  ElementIndex element_;
  std::int64_t parts_;
  std::int64_t dq_stride_;
  std::int64_t dq_rows_;  // of one head: all sequences and their padding
  std::int64_t num_heads_;
  bool wants_dq_;
  std::size_t kernel_scratch_;
  double flops_ = 0.0;
};

}  // namespace

std::unique_ptr<const core::Kernel> make_backward_kernel(const Problem& problem, const KernelSet& kernels) {
  return std::make_unique<BackwardKernel>(problem, kernels);
}

}  // namespace tilewise::backends::cpu
