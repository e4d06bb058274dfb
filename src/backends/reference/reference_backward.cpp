// The backward pass of docs/semantics.md: weights recomputed from softmax_lse, one key head of
// one sequence at a time, so that every sum has one owner and one order.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "backends/reference/reference_math.hpp"
#include "core/parallel.hpp"
#include "operations/attention/table_sums.hpp"

namespace tilewise::backends::reference {
namespace {

using LookUps = std::vector<expression::LookUpDerivative>;

/// Sums that several sequences or heads share: dbias in its own shape, dsink per (sequence, head).
template <typename Real>
struct SharedSums {
  std::vector<Real> dbias, dsink;
  operations::attention::TableSums tables;

  SharedSums(const device::AttentionParams& p, const Problem& problem) : tables(problem) {
    if (p.dbias.data) {
      dbias.resize(static_cast<std::size_t>(p.dbias_shape[0] * p.dbias_shape[1] * p.dbias_shape[2] * p.dbias_shape[3]));
    }
    dsink.resize(static_cast<std::size_t>(p.batch_size * p.num_heads_q));
  }

  Real& dbias_at(const device::AttentionParams& p, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    const std::int64_t position[4] = {b, h, i, j};
    std::int64_t index = 0;
    for (int n = 0; n < 4; ++n) index = index * p.dbias_shape[n] + (p.dbias_shape[n] == 1 ? 0 : position[n]);
    return dbias[static_cast<std::size_t>(index)];
  }
};

/// Parts of the gradients of captured tensors, of one query head. One thread's.
class TableParts {
 public:
  TableParts(const HeadContext& context, const LookUps& look_ups) : context_(context) {
    const std::span tables(context.p.tables, context.numbers.functions.table_count);
    for (const expression::LookUpDerivative& look_up : look_ups) {
      slopes_.emplace_back(look_up.slope, tables);
      places_.emplace_back(look_up, tables);
    }
  }

  /// Of score (i, j) before score_mod, whose result's gradient is `ds`.
  void add(std::int64_t i, std::int64_t j, double score, double ds, operations::attention::TableSums& sums) {
    using Input = expression::Input<double>;
    const auto same = [](const std::int64_t& value) { return Input{.integers = &value, .uniform = true}; };
    const std::array inputs{Input{.reals = &score, .uniform = true}, same(context_.b), same(context_.h), same(i),
                            same(j)};
    for (std::size_t n = 0; n < slopes_.size(); ++n) {
      double part = 0;
      slopes_[n](inputs, 1, &part);
      part *= ds;
      places_[n].add(context_.b, context_.h, i, j, std::span<const double>(&part, 1), sums);
    }
  }

 private:
  const HeadContext& context_;
  std::vector<expression::Evaluator<double>> slopes_;
  std::vector<operations::attention::LookUpPlaces> places_;
};

/// Adds one query row's part to dq_row, dk, dv and the shared sums.
template <typename Real>
void backward_row(const HeadContext& context, std::int64_t i, const double* q, const double* out, const double* dout,
                  const Rows& k, const Rows& v, Real* dq, RowsOf<Real>& dk, RowsOf<Real>& dv, TableParts& tables,
                  SharedSums<Real>& sums) {
  const device::AttentionParams& p = context.p;
  const double lse = load_lse(p.softmax_lse, context, i);
  if (lse == -kInfinity) return;  // the row saw nothing
  const double dlse = p.dlse.data ? load_lse(p.dlse, context, i) : 0.0;
  const Real delta = dot<Real>(out, dout, p.head_dim_v);
  context.for_each_key(i, [&](std::int64_t j) {
    const Score<Real> score = context.score<Real>(i, j, q, k[j]);
    if (!score.visible()) return;
    const Real weight = std::exp(score.value - lse), dropout = context.dropout(i, j);
    Real dp = 0;
    if (dropout != 0) {
      dp = dropout * dot<Real>(dout, v[j], p.head_dim_v);
      for (std::int64_t d = 0; d < p.head_dim_v; ++d) dv[j][d] += weight * dropout * dout[d];
    }
    const Real of_score = weight * (dp - delta + dlse), ds = of_score * score.mod_slope;
    tables.add(i, j, static_cast<double>(score.unmodified), static_cast<double>(of_score), sums.tables);
    if (p.dbias.data) sums.dbias_at(p, context.b, context.h, i, context.sequence.leftpad + j) += ds;
    const Real ds_scaled = context.numbers.factors.softmax_scale * score.slope * ds;
    for (std::int64_t d = 0; d < p.head_dim; ++d) dq[d] += ds_scaled * k[j][d];
    for (std::int64_t d = 0; d < p.head_dim; ++d) dk[j][d] += ds_scaled * q[d];
  });
  sums.dsink[static_cast<std::size_t>(context.b * p.num_heads_q + context.h)] +=
      std::exp(Real{context.sink()} - lse) * (dlse - delta);
}

/// Writes the rows of a sequence: zero outside [first, first + used.size()).
template <typename Real>
void write_padded(const Head& head, std::int64_t all, std::int64_t first, std::int64_t count,
                  const RowsOf<Real>& used) {
  const std::vector<Real> zero(static_cast<std::size_t>(used.width));
  for (std::int64_t row = 0; row < all && !abandoned_at(row); ++row) {
    const bool inside = row >= first && row < first + count;
    head.write(row, inside ? used[row - first] : zero.data());
  }
}

template <typename Real>
void backward_key_head(const device::AttentionParams& p, const Numbers& numbers, const LookUps& look_ups,
                       std::int64_t b, std::int64_t h_k, SharedSums<Real>& sums) {
  const DType dtype = numbers.dtype;
  const device::Sequence s = device::sequence_of(p, b);
  const Rows k = Head(p.k, dtype, b, s.k_row, h_k, p.head_dim).read_rows(s.seqlen_k);
  const Rows v = Head(p.v, dtype, b, s.k_row, h_k, p.head_dim_v).read_rows(s.seqlen_k);
  RowsOf<Real> dk(s.seqlen_k, p.head_dim), dv(s.seqlen_k, p.head_dim_v);

  const std::int64_t group = p.num_heads_q / p.num_heads_k;
  for (std::int64_t h = h_k * group; h < (h_k + 1) * group && !core::abandoned(); ++h) {
    const HeadContext context(p, numbers, b, h);
    TableParts tables(context, look_ups);
    const Rows q = Head(p.q, dtype, b, s.q_row, h, p.head_dim).read_rows(s.seqlen_q);
    const Rows out = Head(p.out, dtype, b, s.q_row, h, p.head_dim_v).read_rows(s.seqlen_q);
    const Rows dout = Head(p.dout, dtype, b, s.q_row, h, p.head_dim_v).read_rows(s.seqlen_q);
    RowsOf<Real> dq(s.seqlen_q, p.head_dim);
    for (std::int64_t i = 0; i < s.seqlen_q && !core::abandoned(); ++i)
      backward_row(context, i, q[i], out[i], dout[i], k, v, dq[i], dk, dv, tables, sums);
    context.check_look_ups();
    if (p.dq.data) write_padded(Head(p.dq, dtype, b, s.q_row, h, p.head_dim), s.all_q, 0, s.seqlen_q, dq);
  }
  const std::int64_t first = s.k_row - s.leftpad;
  if (p.dk.data) write_padded(Head(p.dk, dtype, b, first, h_k, p.head_dim), s.all_k, s.leftpad, s.seqlen_k, dk);
  if (p.dv.data) write_padded(Head(p.dv, dtype, b, first, h_k, p.head_dim_v), s.all_k, s.leftpad, s.seqlen_k, dv);
}

template <typename Real>
void write_dbias(const device::AttentionParams& p, SharedSums<Real>& sums) {
  const std::int64_t* shape = p.dbias_shape;
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t h = 0; h < shape[1]; ++h)
      for (std::int64_t i = 0; i < shape[2] && !core::abandoned(); ++i)
        for (std::int64_t j = 0; j < shape[3]; ++j)
          store_element(
              operations::dtype_of(p.bias_type), p.dbias.data,
              b * p.dbias.batch_stride + h * p.dbias.head_stride + i * p.dbias.query_stride + j * p.dbias.key_stride,
              static_cast<double>(sums.dbias_at(p, b, h, i, j)));
}

template <typename Real>
void write_dsink(const device::AttentionParams& p, const SharedSums<Real>& sums) {
  for (std::int64_t h = 0; h < p.num_heads_q; ++h) {
    Real sum = 0;
    for (std::int64_t b = 0; b < p.batch_size; ++b) sum += sums.dsink[static_cast<std::size_t>(b * p.num_heads_q + h)];
    store_element(operations::dtype_of(p.dsink.type), p.dsink.data, h * p.dsink.stride, static_cast<double>(sum));
  }
}

template <typename Real>
void backward_in(const device::AttentionParams& params, const Numbers& numbers, const Problem& problem) {
  SharedSums<Real> sums(params, problem);
  const LookUps look_ups = operations::attention::wanted_look_ups(problem);
  // Sequences or heads that share elements of dbias or of tables take turns, in order.
  const bool shared = problem.dtables != 0 || (params.dbias.data && (params.dbias_shape[0] != params.batch_size ||
                                                                     params.dbias_shape[1] != params.num_heads_q));
  core::parallel_for(
      params.batch_size * params.num_heads_k, shared ? 1 : core::num_threads(), [&](std::int64_t task, int) {
        backward_key_head(params, numbers, look_ups, task / params.num_heads_k, task % params.num_heads_k, sums);
      });
  // The closing sums too run in the pool's floating-point mode.
  core::parallel_for(1, 1, [&](std::int64_t, int) {
    if (params.dbias.data) write_dbias(params, sums);
    if (params.dsink.data) write_dsink(params, sums);
    sums.tables.store(problem, params.dtables);
  });
}

}  // namespace

void backward(const device::AttentionParams& params, const Numbers& numbers, const Problem& problem) {
  numbers.dtype == DType::f64 ? backward_in<long double>(params, numbers, problem)
                              : backward_in<double>(params, numbers, problem);
}

}  // namespace tilewise::backends::reference
