// The backward pass over selected keys; see selected_backward.hpp.
#include "backends/cpu/selected_backward.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>

#include "backends/cpu/bias_gradient.hpp"
#include "backends/cpu/flush_denormals.hpp"
#include "backends/cpu/gradient_rows.hpp"
#include "backends/cpu/rows.hpp"
#include "backends/cpu/score_functions.hpp"
#include "backends/cpu/selected_keys.hpp"
#include "core/ceil_div.hpp"
#include "core/parallel.hpp"
#include "operations/attention/attention.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::cpu {
namespace {

using core::ceil_div;

class SelectedBackwardKernel final : public operations::attention::Kernel {
 public:
  SelectedBackwardKernel(const Problem& problem, const KernelSet& kernels)
      : kernels_(kernels),
        own_(element_of(problem.dtype)),
        element_(problem.dtype == DType::f64 ? kElementF64 : kElementF32),
        size_(element_size(element_)),
        scores_(problem),
        dim_(problem.head_dim),
        dim_v_(problem.head_dim_v),
        dq_stride_(ceil_div(problem.head_dim, 16) * 16),
        rows_k_(problem.layout == Layout::thd ? problem.total_k : problem.batch_size * problem.seqlen_k),
        num_heads_k_(problem.num_heads_k),
        scratch_(
            kernels.backward_scratch[element_](static_cast<std::int32_t>(dim_), static_cast<std::int32_t>(dim_v_))),
        flops_(2.5 * forward_flops(problem)) {}

  /// Sums of dk and dv: [row][key head][head_dim + head_dim_v].
  [[nodiscard]] std::size_t workspace_size() const noexcept override {
    return static_cast<std::size_t>(rows_k_ * num_heads_k_ * (dim_ + dim_v_)) * size_;
  }

  [[nodiscard]] std::string schedule() const override {
    return "blocks of " + std::to_string(kernels_.backward_keys) + " gathered keys x a query's heads";
  }

  void launch(const device::AttentionParams& p, void* workspace, void*) const override {
    CapturedTables tables;
    const ScoreParams score = scores_.bind(p, tables);
    const int workers = workers_for(flops_);
    if (p.dq.data || p.dk.data || p.dv.data) {
      core::parallel_for(p.batch_size * p.num_heads_k, workers, [&](std::int64_t task, int) {
        const FlushDenormals flush;
        run_head(p, score, workspace, task / p.num_heads_k, task % p.num_heads_k);
      });
    }
    if (p.dsink.data) accumulate_dsink(p, kernels_, own_, workers);
  }

 private:
  /// What one query's blocks of keys are made of, in scratch.
  struct Memory {
    std::byte *kernel, *k, *v, *q, *dout, *dq, *dk, *dv;  // dk and dv: of one block
  };
  /// One key head of one sequence.
  struct Head {
    const device::AttentionParams& p;
    const ScoreParams& score;
    std::int64_t batch, head_k, group;
    device::Sequence sequence;
    Memory memory;
    void* sums;  // of key row 0
  };

  [[nodiscard]] Memory carve(std::int64_t group) const {
    const std::int64_t keys = kernels_.backward_keys,
                       rows = group + 16;  // kernels may scribble on rows behind the last
    std::size_t used = 0;
    std::array<std::size_t, 8> at{};
    const std::array<std::size_t, 8> bytes{scratch_,
                                           static_cast<std::size_t>(keys * dim_) * size_,
                                           static_cast<std::size_t>(keys * dim_v_) * size_,
                                           static_cast<std::size_t>(rows * dim_) * size_,
                                           static_cast<std::size_t>(rows * dim_v_) * size_,
                                           static_cast<std::size_t>(rows * dq_stride_) * size_,
                                           static_cast<std::size_t>(keys * dim_) * size_,
                                           static_cast<std::size_t>(keys * dim_v_) * size_};
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      at[n] = used;
      used += (bytes[n] + 63) / 64 * 64;
    }
    auto* base = static_cast<std::byte*>(thread_scratch(used));
    return {base, base + at[1], base + at[2], base + at[3], base + at[4], base + at[5], base + at[6], base + at[7]};
  }

  void run_head(const device::AttentionParams& p, const ScoreParams& score, void* workspace, std::int64_t batch,
                std::int64_t head_k) const {
    const device::Sequence s = device::sequence_of(p, batch);
    const std::int64_t group = p.num_heads_q / p.num_heads_k;
    const GradientRows rows(p, kernels_, own_, batch, s);
    rows.clear_unused(head_k, group);
    const std::int64_t first = p.cu_seqlens_k ? s.k_row : batch * p.seqlen_k + s.k_row;
    const Head head{p, score, batch, head_k, group, s, carve(group), sums_of(workspace, first, head_k)};
    for (std::int64_t j = 0; j < s.seqlen_k; ++j)
      std::memset(advance(head.sums, j * row_sums(), size_), 0, static_cast<std::size_t>(dim_ + dim_v_) * size_);
    for (std::int64_t i = 0; i < s.seqlen_q && !core::abandoned(); ++i) run_query(head, rows, i);
    for (std::int64_t j = 0; j < s.seqlen_k && !core::abandoned(); ++j) {
      const void* sums = advance(head.sums, j * row_sums(), size_);
      store(p.dk, head, s.k_row + j, sums, dim_);
      store(p.dv, head, s.k_row + j, advance(head.sums, j * row_sums() + dim_, size_), dim_v_);
    }
  }

  [[nodiscard]] std::int64_t row_sums() const { return num_heads_k_ * (dim_ + dim_v_); }
  [[nodiscard]] void* sums_of(void* workspace, std::int64_t row, std::int64_t head_k) const {
    return advance(workspace, row * row_sums() + head_k * (dim_ + dim_v_), size_);
  }

  void store(const device::Tensor4& to, const Head& head, std::int64_t row, const void* from, std::int64_t dim) const {
    if (!to.data) return;
    kernels_.store_scaled[own_](from, dim, 1.0,
                                mutable_row_address(to, head.batch, row, head.head_k, element_size(own_)));
  }

  /// A row of a tensor as kernels read it.
  void read_row(const device::Tensor4& from, std::int64_t batch, std::int64_t row, std::int64_t head, std::int64_t dim,
                void* to) const {
    const void* source = row_address(from, batch, row, head, element_size(own_));
    if (own_ == element_) {
      std::memcpy(to, source, static_cast<std::size_t>(dim) * size_);
      return;
    }
    for (std::int64_t d = 0; d < dim; ++d)
      static_cast<float*>(to)[d] = static_cast<float>(operations::load_element(dtype_of(own_), source, d));
  }

  void run_query(const Head& head, const GradientRows& rows, std::int64_t i) const {
    const device::AttentionParams& p = head.p;
    const device::Sequence& s = head.sequence;
    const std::int64_t row = s.q_row + i, first_head = head.head_k * head.group;
    const device::KeyRange visible = device::visible_keys(p, s, device::diagonal_offset(p, s), i);
    const SeenKeys seen = seen_keys(p.key_indices, visible, head.batch, row, head.head_k);
    for (std::int64_t h = 0; h < head.group; ++h) {
      read_row(p.q, head.batch, row, first_head + h, dim_, advance(head.memory.q, h * dim_, size_));
      read_row(p.dout, head.batch, row, first_head + h, dim_v_, advance(head.memory.dout, h * dim_v_, size_));
    }
    std::memset(head.memory.dq, 0, static_cast<std::size_t>(head.group * dq_stride_) * size_);
    for (std::int32_t key = 0; key < seen.count; key += kernels_.backward_keys)
      run_block(head, rows, i, seen, key, std::min(kernels_.backward_keys, seen.count - key));
    if (!p.dq.data) return;
    for (std::int64_t h = 0; h < head.group; ++h)
      rows.store_dq(advance(head.memory.dq, h * dq_stride_, size_), i, first_head + h, scores_.softmax_scale());
  }

  void run_block(const Head& head, const GradientRows& rows, std::int64_t i, const SeenKeys& seen, std::int32_t key,
                 std::int32_t count) const {
    const device::AttentionParams& p = head.p;
    for (std::int32_t n = 0; n < count; ++n) {
      const std::int64_t row = head.sequence.k_row + seen.places[key + n];
      read_row(p.k, head.batch, row, head.head_k, dim_, advance(head.memory.k, n * dim_, size_));
      read_row(p.v, head.batch, row, head.head_k, dim_v_, advance(head.memory.v, n * dim_v_, size_));
    }
    KeyBlock block = rows.key_block(head.score, head.head_k, key, count);
    block.k = head.memory.k;
    block.v = head.memory.v;
    block.k_stride = dim_;
    block.v_stride = dim_v_;
    block.score.places = seen.places;
    kernels_.begin_keys[element_](block, head.memory.kernel);
    for (std::int64_t h = 0; h < head.group; h += kernels_.backward_rows)
      add_heads(head, rows, block, i, seen, h, std::min<std::int64_t>(kernels_.backward_rows, head.group - h));
    kernels_.end_keys[element_](block, p.dk.data ? head.memory.dk : nullptr, dim_, p.dv.data ? head.memory.dv : nullptr,
                                dim_v_, head.memory.kernel);
    for (std::int32_t n = 0; n < count; ++n) {
      void* sums = advance(head.sums, seen.places[key + n] * row_sums(), size_);
      if (p.dk.data) add(advance(head.memory.dk, n * dim_, size_), dim_, sums);
      if (p.dv.data) add(advance(head.memory.dv, n * dim_v_, size_), dim_v_, advance(sums, dim_, size_));
    }
  }

  void add_heads(const Head& head, const GradientRows& rows, const KeyBlock& block, std::int64_t i,
                 const SeenKeys& seen, std::int64_t first, std::int64_t count) const {
    const RowMaker maker(head.p, own_, head.batch, head.sequence);
    std::array<RowInfo, kMaxBackwardRows> infos;
    for (std::int64_t n = 0; n < count; ++n) {
      RowInfo& info = infos[static_cast<std::size_t>(n)];
      const std::int64_t h = head.head_k * head.group + first + n;
      info = maker.row(i, h);
      info.key_begin = 0;
      info.key_end = seen.count;
      rows.statistics(h, i, 1, &info.softmax_lse, &info.delta);
    }
    QueryBlock queries{};
    queries.rows = infos.data();
    queries.num_rows = static_cast<std::int32_t>(count);
    queries.q = advance(head.memory.q, first * dim_, size_);
    queries.dout = advance(head.memory.dout, first * dim_v_, size_);
    queries.q_stride = dim_;
    queries.dout_stride = dim_v_;
    queries.dq = head.p.dq.data ? advance(head.memory.dq, first * dq_stride_, size_) : nullptr;
    queries.dq_stride = dq_stride_;
    kernels_.add_queries[element_](block, queries, head.memory.kernel);
  }

  void add(const void* from, std::int64_t dim, void* to) const {
    element_ == kElementF64 ? add_reals<double>(from, dim, to) : add_reals<float>(from, dim, to);
  }
  template <typename Real>
  static void add_reals(const void* from, std::int64_t dim, void* to) {
    for (std::int64_t d = 0; d < dim; ++d) static_cast<Real*>(to)[d] += static_cast<const Real*>(from)[d];
  }

  const KernelSet& kernels_;
  ElementIndex own_, element_;  // of the tensors, and of what kernels read
  std::size_t size_;            // of an element_, which is a Real
  ProblemScores scores_;
  std::int64_t dim_, dim_v_, dq_stride_, rows_k_, num_heads_k_;
  std::size_t scratch_;
  double flops_;
};

}  // namespace

std::unique_ptr<core::Kernel> make_selected_backward_kernel(const Problem& problem, const KernelSet& kernels) {
  return std::make_unique<SelectedBackwardKernel>(problem, kernels);
}

}  // namespace tilewise::backends::cpu
