// Where a NaN or infinity may show; see reach.hpp.
#include "verify/reach.hpp"

#include <algorithm>
#include <cmath>

#include "backends/reference/reference_math.hpp"
#include "operations/attention/call.hpp"
#include "verify/rounding.hpp"

namespace tilewise::verify {
namespace {

using backends::reference::Head;
using backends::reference::HeadContext;
using backends::reference::load_lse;
using backends::reference::Numbers;
using backends::reference::Rows;
using backends::reference::Score;
using device::AttentionParams;

bool all_finite(const double* row, std::int64_t size) {
  return std::all_of(row, row + size, [](double x) { return std::isfinite(x); });
}

/// Of rows [0, count): which hold a value that is no number.
std::vector<bool> special_rows(const Rows& rows, std::int64_t count) {
  std::vector<bool> special(static_cast<std::size_t>(count));
  for (std::int64_t row = 0; row < count; ++row)
    special[static_cast<std::size_t>(row)] = !all_finite(rows[row], rows.width);
  return special;
}

class ReachPass {
 public:
  ReachPass(const AttentionParams& params, const Problem& problem, std::vector<ErrorBounds>& bounds)
      : p_(params), numbers_(problem), dtype_(problem.dtype), bounds_(bounds) {
    for (ErrorBounds& b : bounds_) b.reach.assign(b.limit.size(), Reach::none);
  }

  void forward_head(std::int64_t b, std::int64_t h);
  void backward_key_head(std::int64_t b, std::int64_t h_k);

 private:
  /// How a position counts.
  enum class Sight : std::uint8_t { seen, dropped, hidden, hidden_by_product };

  /// Notes which keys selection leaves to query i.
  void select_keys(const HeadContext& c, std::int64_t i) {
    selected_.assign(static_cast<std::size_t>(c.sequence.seqlen_k), false);
    c.for_each_key(i, [this](std::int64_t j) { selected_[static_cast<std::size_t>(j)] = true; });
  }
  /// Of a query whose keys are noted.
  [[nodiscard]] Sight sight(const HeadContext& c, std::int64_t i, std::int64_t j, const Score<double>& score) const {
    if (!selected_[static_cast<std::size_t>(j)]) return Sight::hidden;
    if (!score.visible()) {
      // Of rows of zeros: a mask that leaves the position alone has not hidden a product of -infinity.
      const bool by_position = !c.score(i, j, zeros_.data(), zeros_.data()).visible();
      return by_position ? Sight::hidden : Sight::hidden_by_product;
    }
    return c.dropout(i, j) == 0.0 ? Sight::dropped : Sight::seen;
  }

  /// A head's row of an output [batch, row, head, dim]; null where the output is not wanted.
  [[nodiscard]] Reach* row_of(std::string_view name, std::int64_t b, std::int64_t seqlen, std::int64_t row,
                              std::int64_t h, std::int64_t heads, std::int64_t dim) {
    const auto found = std::find_if(bounds_.begin(), bounds_.end(), [&](const auto& o) { return o.output == name; });
    if (found == bounds_.end()) return nullptr;
    const std::int64_t batch = p_.cu_seqlens_q ? 0 : b;
    return found->reach.data() + ((batch * seqlen + row) * heads + h) * dim;
  }
  /// Columns where `values` are no numbers; all of them where it is null.
  static void mark(Reach* row, const double* values, std::int64_t size) {
    for (std::int64_t d = 0; row && d < size; ++d)
      if (!values || !std::isfinite(values[d])) row[d] = Reach::may;
  }

  struct BackwardRow;
  void backward_position(const BackwardRow& row, std::int64_t j);

  const AttentionParams& p_;
  Numbers numbers_;
  DType dtype_;
  std::vector<ErrorBounds>& bounds_;
  std::vector<bool> selected_;
  std::vector<double> zeros_ = std::vector<double>(static_cast<std::size_t>(p_.head_dim), 0.0);  // a row of q or k
};

void ReachPass::forward_head(std::int64_t b, std::int64_t h) {
  const HeadContext c(p_, numbers_, b, h);
  const device::Sequence& s = c.sequence;
  const std::int64_t h_k = h / (p_.num_heads_q / p_.num_heads_k);
  const Rows q = Head(p_.q, dtype_, b, s.q_row, h, p_.head_dim).read_rows(s.seqlen_q);
  const Rows k = Head(p_.k, dtype_, b, s.k_row, h_k, p_.head_dim).read_rows(s.seqlen_k);
  const Rows v = Head(p_.v, dtype_, b, s.k_row, h_k, p_.head_dim_v).read_rows(s.seqlen_k);
  const std::vector<bool> special = special_rows(v, s.seqlen_k);
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    Reach* const out = row_of("out", b, p_.seqlen_q, s.q_row + i, h, p_.num_heads_q, p_.head_dim_v);
    bool sees = false, nan = false;
    select_keys(c, i);
    for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
      const Score<double> score = c.score(i, j, q[i], k[j]);
      const Sight how = sight(c, i, j, score);
      if (how == Sight::seen || how == Sight::dropped) {
        sees = true;
        nan |= !(score.value < kInfinity);
      }
      if (how != Sight::seen && special[static_cast<std::size_t>(j)]) mark(out, v[j], p_.head_dim_v);
    }
    if (!sees) std::fill_n(out, p_.head_dim_v, Reach::none);
    if (nan) std::fill_n(out, p_.head_dim_v, Reach::must_nan);
  }
}

/// One query, and the keys of its sequence.
struct ReachPass::BackwardRow {
  const HeadContext& c;
  std::int64_t i, h_k;
  const double *q, *dout;
  const Rows &k, &v;
  bool sees_nothing, special;  // special: q, dout or a statistic of the row
};

void ReachPass::backward_position(const BackwardRow& r, std::int64_t j) {
  const device::Sequence& s = r.c.sequence;
  const Sight how = sight(r.c, r.i, j, r.c.score(r.i, j, r.q, r.k[j]));
  if (how == Sight::seen) return;
  Reach* const dq = row_of("dq", r.c.b, p_.seqlen_q, s.q_row + r.i, r.c.h, p_.num_heads_q, p_.head_dim);
  Reach* const dk = row_of("dk", r.c.b, p_.seqlen_k, s.k_row + j, r.h_k, p_.num_heads_k, p_.head_dim);
  Reach* const dv = row_of("dv", r.c.b, p_.seqlen_k, s.k_row + j, r.h_k, p_.num_heads_k, p_.head_dim_v);
  const bool special_value = !all_finite(r.v[j], p_.head_dim_v);
  mark(dv, r.dout, p_.head_dim_v);
  if (how == Sight::dropped) {
    // Tiles repeat the last query, for which nothing is dropped.
    const bool repeated = r.special && r.i + 1 == s.seqlen_q;
    if (special_value || repeated) mark(dk, nullptr, p_.head_dim);
    if (repeated) mark(dv, nullptr, p_.head_dim_v);
    return;
  }
  mark(dk, r.q, p_.head_dim);
  if (!r.sees_nothing) mark(dq, r.k[j], p_.head_dim);
  if (how != Sight::hidden_by_product) return;
  if (r.special || special_value) mark(dk, nullptr, p_.head_dim);
  if (r.special) mark(dv, nullptr, p_.head_dim_v);
  if ((r.special || special_value) && !r.sees_nothing) mark(dq, nullptr, p_.head_dim);
}

void ReachPass::backward_key_head(std::int64_t b, std::int64_t h_k) {
  const device::Sequence s = device::sequence_of(p_, b);
  const Rows k = Head(p_.k, dtype_, b, s.k_row, h_k, p_.head_dim).read_rows(s.seqlen_k);
  const Rows v = Head(p_.v, dtype_, b, s.k_row, h_k, p_.head_dim_v).read_rows(s.seqlen_k);
  const std::vector<bool> special_k = special_rows(k, s.seqlen_k), special_v = special_rows(v, s.seqlen_k);
  const std::int64_t group = p_.num_heads_q / p_.num_heads_k;
  for (std::int64_t h = h_k * group; h < (h_k + 1) * group; ++h) {
    const HeadContext c(p_, numbers_, b, h);
    const Rows q = Head(p_.q, dtype_, b, s.q_row, h, p_.head_dim).read_rows(s.seqlen_q);
    const Rows out = Head(p_.out, dtype_, b, s.q_row, h, p_.head_dim_v).read_rows(s.seqlen_q);
    const Rows dout = Head(p_.dout, dtype_, b, s.q_row, h, p_.head_dim_v).read_rows(s.seqlen_q);
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
      const double lse = load_lse(p_.softmax_lse, c, i);
      const double dlse = p_.dlse.data ? load_lse(p_.dlse, c, i) : 0.0;
      const bool special = !all_finite(q[i], p_.head_dim) || !all_finite(dout[i], p_.head_dim_v) ||
                           !all_finite(out[i], p_.head_dim_v) || !std::isfinite(lse) || !std::isfinite(dlse);
      const BackwardRow row{c, i, h_k, q[i], dout[i], k, v, lse == -kInfinity, special};
      select_keys(c, i);
      for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
        const auto key = static_cast<std::size_t>(j);
        if (special || special_k[key] || special_v[key]) backward_position(row, j);
      }
    }
  }
}

}  // namespace

void mark_reach(const CallTensors& tensors, const std::vector<Output>& expected, std::vector<ErrorBounds>& bounds) {
  const Problem& problem = tensors.problem();
  const bool forward = problem.operation == Operation::attention_forward;
  // The arguments must outlive the call made of them.
  const ForwardArguments forward_arguments = tensors.forward_arguments(expected);
  const BackwardArguments backward_arguments = tensors.backward_arguments(expected);
  const AttentionParams params = operations::attention::make_params(
      forward ? operations::attention::call_of(forward_arguments) : operations::attention::call_of(backward_arguments),
      problem);
  ReachPass pass(params, problem, bounds);
  for (std::int64_t b = 0; b < params.batch_size; ++b) {
    if (forward) {
      for (std::int64_t h = 0; h < params.num_heads_q; ++h) pass.forward_head(b, h);
    } else {
      for (std::int64_t h = 0; h < params.num_heads_k; ++h) pass.backward_key_head(b, h);
    }
  }
}

}  // namespace tilewise::verify
