// The backward pass on the CPU; see backward_kernel.hpp.
//
// One task owns a key head of one sequence (or a part of its keys) and walks its key blocks;
// dk and dv are complete when a block's queries have passed. dq accumulates in the kernels' Reals: in the
// task's own scratch where it owns all keys, else one copy a part, summed in order at the end.
#include "backends/cpu/backward_kernel.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "backends/cpu/bias_gradient.hpp"
#include "backends/cpu/decode_kernel.hpp"
#include "backends/cpu/flush_denormals.hpp"
#include "backends/cpu/gradient_rows.hpp"
#include "backends/cpu/rows.hpp"
#include "backends/cpu/score_functions.hpp"
#include "backends/cpu/selected_backward.hpp"
#include "backends/cpu/table_gradients.hpp"
#include "core/ceil_div.hpp"
#include "core/parallel.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::cpu {
namespace {

using core::ceil_div;

constexpr std::int64_t kWantedTasks = 16;  // below this, the keys of a head are shared out
constexpr std::int64_t kMaxParts = 8;
constexpr std::int64_t kRowPadding = 16;  // rows a kernel may scribble on past a head's dq

/// Parts the keys of one head are cut into: by the problem alone, so that results do not depend
/// on the machine, and not by its batch where the caller asks for batch invariance.
std::int64_t key_parts(const Problem& p, std::int64_t block_keys) {
  const std::int64_t tasks = std::max<std::int64_t>(p.num_heads_k * (p.batch_invariant ? 1 : p.batch_size), 1);
  const std::int64_t wanted = std::clamp<std::int64_t>(ceil_div(kWantedTasks, tasks), 1, kMaxParts);
  if (p.batch_invariant) return wanted;
  return std::clamp<std::int64_t>(ceil_div(p.seqlen_k, 2 * block_keys), 1, wanted);
}

template <typename Real>
void add(void* sum, const void* more, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) static_cast<Real*>(sum)[i] += static_cast<const Real*>(more)[i];
}

class BackwardKernel final : public operations::attention::Kernel {
 public:
  BackwardKernel(const Problem& problem, const KernelSet& kernels)
      : kernels_(kernels),
        element_(element_of(problem.dtype)),
        scores_(problem),
        table_gradients_(problem),
        real_(real_size(element_)),
        parts_(key_parts(problem, kernels.backward_keys)),
        dq_stride_(ceil_div(problem.head_dim, 16) * 16),
        dq_rows_((problem.layout == Layout::thd ? problem.total_q : problem.batch_size * problem.seqlen_q) +
                 problem.batch_size * kRowPadding),
        num_heads_(problem.num_heads_q),
        wants_dq_(problem.dq),
        decoded_(suits_decode(problem, kernels)),
        kernel_scratch_(kernels.backward_scratch[element_](static_cast<std::int32_t>(problem.head_dim),
                                                           static_cast<std::int32_t>(problem.head_dim_v))) {
    flops_ = 2.5 * forward_flops(problem);
  }

  [[nodiscard]] std::size_t workspace_size() const noexcept override {
    if (parts_ == 1 || !wants_dq_) return 0;
    return static_cast<std::size_t>(parts_ * num_heads_ * dq_rows_ * dq_stride_) * real_;
  }

  [[nodiscard]] std::string schedule() const override {
    return "blocks of " + std::to_string(kernels_.backward_keys) + " keys x " + std::to_string(kernels_.backward_rows) +
           " queries, " + std::to_string(parts_) + (parts_ == 1 ? " part" : " parts") + " a key head";
  }

  void launch(const device::AttentionParams& p, void* workspace, void*) const override {
    CapturedTables tables;
    ScoreParams score = scores_.bind(p, tables);
    score.decoded = decoded_;
    const int workers = workers_for(flops_);
    const std::int64_t heads = p.batch_size * p.num_heads_k;
    if (p.dq.data || p.dk.data || p.dv.data) {
      core::parallel_for(heads * parts_, workers, [&](std::int64_t task, int) {
        const FlushDenormals flush;
        const std::int64_t part = task / heads, head = task % heads;
        run_head(p, score, workspace, head / p.num_heads_k, head % p.num_heads_k, part);
      });
    }
    if (parts_ > 1 && p.dq.data) {
      core::parallel_for(p.batch_size * p.num_heads_q, workers, [&](std::int64_t task, int) {
        const FlushDenormals flush;
        sum_parts(p, workspace, task / p.num_heads_q, task % p.num_heads_q);
      });
    }
    if (p.dbias.data) accumulate_dbias(p, score, kernels_, element_, kernel_scratch_, workers);
    if (table_gradients_.wanted()) table_gradients_.write(p, score, kernels_, element_, kernel_scratch_, workers);
    if (p.dsink.data) accumulate_dsink(p, kernels_, element_, workers);
  }

 private:
  void run_head(const device::AttentionParams& p, const ScoreParams& score, void* workspace, std::int64_t batch,
                std::int64_t head_k, std::int64_t part) const {
    const device::Sequence s = device::sequence_of(p, batch);
    const std::int64_t group = p.num_heads_q / p.num_heads_k;
    const GradientRows rows(p, kernels_, element_, batch, s);
    if (part == 0) rows.clear_unused(head_k, group);

    // Scratch: the kernel's own, then the rows' statistics, then dq where the task owns it.
    const std::int64_t statistics = group * s.seqlen_q;
    const bool owns_dq = p.dq.data && parts_ == 1;
    const std::int64_t rows_kept = ceil_div(statistics, 16) * 16, head_dq = (s.seqlen_q + kRowPadding) * dq_stride_;
    const std::size_t bytes = static_cast<std::size_t>(2 * rows_kept) * sizeof(double) +
                              static_cast<std::size_t>(owns_dq ? group * head_dq : 0) * real_;
    auto* scratch = static_cast<std::byte*>(thread_scratch(kernel_scratch_ + bytes));
    auto* lse = reinterpret_cast<double*>(scratch + kernel_scratch_);
    double* delta = lse + rows_kept;
    double* own_dq = delta + rows_kept;
    const auto dq_of = [&](std::int64_t h) {
      return owns_dq ? advance(own_dq, h * head_dq, real_) : part_dq(workspace, p, batch, head_k * group + h, part);
    };
    for (std::int64_t h = 0; h < group; ++h) {
      rows.statistics(head_k * group + h, 0, s.seqlen_q, lse + h * s.seqlen_q, delta + h * s.seqlen_q);
      if (p.dq.data) {
        void* dq = dq_of(h);
        for (std::int64_t i = 0; i < s.seqlen_q && !core::abandoned(); i += kRowsBetweenQuestions) {
          const std::int64_t count = std::min(kRowsBetweenQuestions, s.seqlen_q - i);
          std::memset(advance(dq, i * dq_stride_, real_), 0, static_cast<std::size_t>(count * dq_stride_) * real_);
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
        rows.add_queries(block, head_k * group + h, lse + h * s.seqlen_q, delta + h * s.seqlen_q,
                         p.dq.data ? dq_of(h) : nullptr, dq_stride_, scratch);
      }
      rows.finish_keys(block, head_k, key, scratch);
    }
    if (!owns_dq) return;
    for (std::int64_t h = 0; h < group; ++h)
      for (std::int64_t i = 0; i < s.seqlen_q; ++i)
        rows.store_dq(advance(dq_of(h), i * dq_stride_, real_), i, head_k * group + h, scores_.softmax_scale());
  }

  /// dq of one part, [part][head][row][dq_stride]; the rows of all sequences follow each other, each
  /// sequence's with its padding.
  [[nodiscard]] void* part_dq(void* workspace, const device::AttentionParams& p, std::int64_t batch, std::int64_t head,
                              std::int64_t part) const {
    const std::int64_t first = p.cu_seqlens_q ? device::sequence_of(p, batch).q_row : batch * p.seqlen_q;
    const std::int64_t row = (part * num_heads_ + head) * dq_rows_ + first + batch * kRowPadding;
    return advance(workspace, row * dq_stride_, real_);
  }

  void sum_parts(const device::AttentionParams& p, void* workspace, std::int64_t batch, std::int64_t head) const {
    const device::Sequence s = device::sequence_of(p, batch);
    const GradientRows rows(p, kernels_, element_, batch, s);
    void* total = part_dq(workspace, p, batch, head, 0);
    for (std::int64_t part = 1; part < parts_; ++part) {
      void* more = part_dq(workspace, p, batch, head, part);
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        if (i % kRowsBetweenQuestions == 0 && core::abandoned()) return;
        void* sums = advance(total, i * dq_stride_, real_);
        const void* row = advance(more, i * dq_stride_, real_);
        real_of(element_) == DType::f64 ? add<double>(sums, row, dq_stride_) : add<float>(sums, row, dq_stride_);
      }
    }
    for (std::int64_t i = 0; i < s.seqlen_q; ++i)
      rows.store_dq(advance(total, i * dq_stride_, real_), i, head, scores_.softmax_scale());
  }

  const KernelSet& kernels_;
  ElementIndex element_;
  ProblemScores scores_;
  TableGradients table_gradients_;
  std::size_t real_;  // bytes of a Real
  std::int64_t parts_;
  std::int64_t dq_stride_;
  std::int64_t dq_rows_;  // of one head: all sequences and their padding
  std::int64_t num_heads_;
  bool wants_dq_, decoded_;
  std::size_t kernel_scratch_;
  double flops_ = 0.0;
};

}  // namespace

std::unique_ptr<core::Kernel> make_backward_kernel(const Problem& problem, const KernelSet& kernels) {
  if (problem.top_k > 0) return make_selected_backward_kernel(problem, kernels);
  return std::make_unique<BackwardKernel>(problem, kernels);
}

}  // namespace tilewise::backends::cpu
