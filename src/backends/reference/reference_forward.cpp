// The forward pass of docs/semantics.md, one query row after the other.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/reference/reference_math.hpp"
#include "core/parallel.hpp"

namespace tilewise::backends::reference {
namespace {

/// Turns the scores s[keys] into softmax weights, in place, and returns the row's log-sum-exp.
/// Positions at -inf are not visible; a row that sees nothing gets weights 0 and the sink (or -inf).
double softmax(std::vector<double>& s, device::KeyRange keys, double sink) {
  double maximum = sink;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) maximum = std::max(maximum, s[static_cast<std::size_t>(j)]);
  double sum = sink == -kInfinity ? 0.0 : std::exp(sink - maximum);
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    double& p = s[static_cast<std::size_t>(j)];
    p = p == -kInfinity ? 0.0 : std::exp(p - maximum);
    sum += p;
  }
  if (sum == 0.0) return sink;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) s[static_cast<std::size_t>(j)] /= sum;
  return maximum + std::log(sum);
}

void forward_head(const device::AttentionParams& p, DType dtype, std::int64_t b, std::int64_t h) {
  const HeadContext context(p, b, h);
  const device::Sequence& s = context.sequence;
  const std::int64_t h_k = h / (p.num_heads_q / p.num_heads_k);
  const Rows k = Head(p.k, dtype, b, s.k_row, h_k, p.head_dim).read_rows(s.seqlen_k);
  const Rows v = Head(p.v, dtype, b, s.k_row, h_k, p.head_dim_v).read_rows(s.seqlen_k);
  const Head q(p.q, dtype, b, s.q_row, h, p.head_dim), out(p.out, dtype, b, s.q_row, h, p.head_dim_v);

  std::vector<double> q_row(static_cast<std::size_t>(p.head_dim)), out_row(static_cast<std::size_t>(p.head_dim_v));
  std::vector<double> weights(static_cast<std::size_t>(s.seqlen_k));
  for (std::int64_t i = 0; i < s.all_q && !core::abandoned(); ++i) {
    double lse = -kInfinity;
    std::fill(out_row.begin(), out_row.end(), 0.0);
    if (i < s.seqlen_q) {
      q.read(i, q_row.data());
      const device::KeyRange keys = context.keys(i);
      for (std::int64_t j = keys.begin; j < keys.end; ++j) {
        if (abandoned_at(j)) return;
        weights[static_cast<std::size_t>(j)] = context.score(i, j, q_row.data(), k[j]).value;
      }
      lse = softmax(weights, keys, context.sink());
      for (std::int64_t j = keys.begin; j < keys.end; ++j) {
        if (abandoned_at(j)) return;
        const double weight = weights[static_cast<std::size_t>(j)] * context.dropout(i, j);
        if (weight == 0.0) continue;  // hidden or dropped: whatever v holds there
        for (std::int64_t d = 0; d < p.head_dim_v; ++d) out_row[static_cast<std::size_t>(d)] += weight * v[j][d];
      }
    }
    out.write(i, out_row.data());
    if (p.softmax_lse.data) p.softmax_lse.data[lse_index(p.softmax_lse, context, i)] = static_cast<float>(lse);
  }
}

}  // namespace

void forward(const device::AttentionParams& params, DType dtype) {
  core::parallel_for(params.batch_size * params.num_heads_q, [&](std::int64_t task, int) {
    forward_head(params, dtype, task / params.num_heads_q, task % params.num_heads_q);
  });
}

}  // namespace tilewise::backends::reference
