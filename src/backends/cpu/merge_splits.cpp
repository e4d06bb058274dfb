// Partial results over disjoint keys to one; see merge_splits.hpp.
#include "backends/cpu/merge_splits.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "backends/cpu/flush_denormals.hpp"
#include "backends/cpu/rows.hpp"
#include "core/parallel.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::cpu {
namespace {

constexpr std::int64_t kLargestHeadDim = 512;

/// A row's splits, reduced in ascending order.
template <typename Real>
struct Merged {
  static constexpr Real kNothingSeen = -std::numeric_limits<Real>::infinity();

  std::array<Real, kLargestHeadDim> out;
  Real lse;

  /// `sink`: -infinity where there is none.
  Merged(const Real* parts, std::int64_t num_splits, std::int64_t head_dim_v, Real sink, Real value_scale) {
    const std::int64_t stride = head_dim_v + 2;
    Real reference = sink;
    bool seen = false;
    for (std::int64_t n = 0; n < num_splits; ++n) {
      const Real part = parts[n * stride + head_dim_v];
      seen |= part != kNothingSeen;
      if (part > reference) reference = part;
    }
    std::fill_n(out.begin(), head_dim_v, Real{0});
    lse = sink;
    if (!seen) return;
    Real sum = sink == kNothingSeen ? Real{0} : std::exp(sink - reference);
    for (std::int64_t n = 0; n < num_splits; ++n) {
      const Real* part = parts + n * stride;
      if (part[head_dim_v] == kNothingSeen) continue;
      const Real scale = std::exp(part[head_dim_v] - reference);
      sum += part[head_dim_v + 1] * scale;
      for (std::int64_t d = 0; d < head_dim_v; ++d) out[static_cast<std::size_t>(d)] += part[d] * scale;
    }
    const Real factor = value_scale / sum;
    for (std::int64_t d = 0; d < head_dim_v; ++d) out[static_cast<std::size_t>(d)] *= factor;
    lse = reference + std::log(sum);
  }
};

}  // namespace

Splits::Splits(const Problem& problem, std::int64_t max_splits)
    : real_(real_size(element_of(problem.dtype))),
      batch_size_(problem.batch_size),
      num_heads_(problem.num_heads_q),
      group_(group_of(problem)),
      seqlen_q_(problem.seqlen_q),
      head_dim_v_(problem.head_dim_v),
      max_splits_(max_splits) {}

std::size_t Splits::workspace_size() const noexcept {
  return static_cast<std::size_t>(batch_size_ * num_heads_ * seqlen_q_ * max_splits_ * (head_dim_v_ + 2)) * real_;
}

void* Splits::row(void* workspace, std::int64_t batch, std::int64_t head, std::int64_t query,
                  std::int64_t split) const {
  const std::int64_t index = ((batch * num_heads_ + head) * seqlen_q_ + query) * max_splits_ + split;
  return advance(workspace, index * (head_dim_v_ + 2), real_);
}

void Splits::merge(const device::AttentionParams& p, const ScoreParams& score, ElementIndex element, void* workspace,
                   int workers) const {
  core::parallel_for(batch_size_ * num_heads_, workers, [&](std::int64_t task, int) {
    const FlushDenormals flush;
    const std::int64_t batch = task / num_heads_, head = task % num_heads_;
    real_of(element) == DType::f64 ? merge_head<double>(p, score, element, workspace, batch, head)
                                   : merge_head<float>(p, score, element, workspace, batch, head);
  });
}

template <typename Real>
void Splits::merge_head(const device::AttentionParams& p, const ScoreParams& score, ElementIndex element,
                        void* workspace, std::int64_t batch, std::int64_t head) const {
  const double of_v = p.v_scale.of(batch, head / group_);
  const auto value_scale = static_cast<Real>(score.dropout_threshold ? of_v * score.dropout_scale : of_v);
  const auto sink = static_cast<Real>(sink_of(p, head));
  const DType dtype = dtype_of(element);
  const device::Sequence s = device::sequence_of(p, batch);
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    const auto* parts = static_cast<const Real*>(row(workspace, batch, head, i, 0));
    const Merged<Real> merged(parts, max_splits_, head_dim_v_, sink, value_scale);
    void* out = mutable_row_address(p.out, batch, s.q_row + i, head, element_size(element));
    for (std::int64_t d = 0; d < head_dim_v_; ++d)
      operations::store_element(dtype, out, d, double{merged.out[static_cast<std::size_t>(d)]});
    if (void* lse = lse_address(p.softmax_lse, s, batch, i, head, element)) *static_cast<Real*>(lse) = merged.lse;
  }
}

}  // namespace tilewise::backends::cpu
