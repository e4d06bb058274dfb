// The forward pass of docs/semantics.md, one query row after the other.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/reference/reference_math.hpp"
#include "core/parallel.hpp"

namespace tilewise::backends::reference {
namespace {

/// A visible key and its score, then its softmax weight.
template <typename Real>
struct VisibleKey {
  std::int64_t key;
  Real weight;
};

/// Turns scores into softmax weights, in place, and returns the row's log-sum-exp: the sink's logit (or -inf) where
/// nothing is visible. The largest score may be any that is a number: a NaN or +inf makes the sum a NaN.
template <typename Real>
Real softmax(std::vector<VisibleKey<Real>>& visible, Real sink) {
  if (visible.empty()) return sink;
  Real maximum = sink;
  for (const VisibleKey<Real>& k : visible) maximum = std::max(maximum, k.weight);
  Real sum = sink == -kInfinity ? 0 : std::exp(sink - maximum);
  for (VisibleKey<Real>& k : visible) {
    k.weight = std::exp(k.weight - maximum);
    sum += k.weight;
  }
  for (VisibleKey<Real>& k : visible) k.weight /= sum;
  return maximum + std::log(sum);
}

template <typename Real>
void forward_head(const device::AttentionParams& p, const Numbers& numbers, std::int64_t b, std::int64_t h) {
  const HeadContext context(p, numbers, b, h);
  const DType dtype = numbers.dtype;
  const device::Sequence& s = context.sequence;
  const std::int64_t h_k = h / (p.num_heads_q / p.num_heads_k);
  const Rows k = Head(p.k, dtype, b, s.k_row, h_k, p.head_dim).read_rows(s.seqlen_k);
  const Rows v = Head(p.v, dtype, b, s.k_row, h_k, p.head_dim_v).read_rows(s.seqlen_k);
  const Head q(p.q, dtype, b, s.q_row, h, p.head_dim), out(p.out, numbers.out_dtype, b, s.q_row, h, p.head_dim_v);

  std::vector<double> q_row(static_cast<std::size_t>(p.head_dim));
  std::vector<Real> out_row(static_cast<std::size_t>(p.head_dim_v));
  std::vector<VisibleKey<Real>> visible;
  for (std::int64_t i = 0; i < s.all_q && !core::abandoned(); ++i) {
    Real lse = -kInfinity;
    std::fill(out_row.begin(), out_row.end(), Real{0});
    if (i < s.seqlen_q) {
      q.read(i, q_row.data());
      visible.clear();
      context.for_each_key(i, [&](std::int64_t j) {
        const Score<Real> score = context.score<Real>(i, j, q_row.data(), k[j]);
        if (score.visible()) visible.push_back({j, score.value});
      });
      lse = softmax(visible, Real{context.sink()});
      // A NaN shows even where every position is dropped.
      if (std::isnan(lse) && !visible.empty()) std::fill(out_row.begin(), out_row.end(), lse);
      for (const VisibleKey<Real>& seen : visible) {
        if (abandoned_at(seen.key)) return;
        const double dropout = context.dropout(i, seen.key);
        if (dropout == 0.0) continue;  // whatever v holds there
        // A weight that underflows counts: 0 times NaN or infinity is NaN.
        const Real weight = seen.weight * dropout * context.value_scale;
        for (std::int64_t d = 0; d < p.head_dim_v; ++d) out_row[static_cast<std::size_t>(d)] += weight * v[seen.key][d];
      }
    }
    out.write(i, out_row.data());
    if (p.softmax_lse.data)
      store_element(numbers.statistics, p.softmax_lse.data, lse_index(p.softmax_lse, context, i),
                    static_cast<double>(lse));
  }
  context.check_look_ups();
}

}  // namespace

void forward(const device::AttentionParams& params, const Numbers& numbers) {
  const auto head = numbers.dtype == DType::f64 ? &forward_head<long double> : &forward_head<double>;
  core::parallel_for(params.batch_size * params.num_heads_q, [&](std::int64_t task, int) {
    head(params, numbers, task / params.num_heads_q, task % params.num_heads_q);
  });
}

}  // namespace tilewise::backends::reference
