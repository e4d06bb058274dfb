// Errors of scores, weights and of what is summed with them, evaluated in double along the reference's own formulas.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "backends/reference/block_mask.hpp"
#include "backends/reference/score_functions.hpp"
#include "device/common/selected.h"
#include "operations/elements.hpp"
#include "verify/error_bounds.hpp"
#include "verify/kv_cache_call.hpp"
#include "verify/rounding.hpp"
#include "verify/weight_errors.hpp"

namespace tilewise::verify {
namespace {

using operations::load_element;
using namespace operations::kv_cache;

class Pass {
 public:
  Pass(const KvCacheParams& p, const KvCacheProblem& problem, const std::vector<Output>& expected, Values values,
       double tanh_error)
      : p_(p),
        functions_(problem),
        block_mask_(problem.block_mask),
        special_(values == Values::special),
        tanh_error_(tanh_error),
        r_(unit_roundoff(p.dtype)),
        bounds_(no_errors(expected)) {
    for (ErrorBounds& bounds : bounds_)
      if (special_) bounds.reach.assign(bounds.limit.size(), Reach::none);
  }

  std::vector<ErrorBounds> run() && {
    if (!p_.attends) return std::move(bounds_);
    for (std::int64_t b = 0; b < p_.batch_size; ++b) {
      const Sequence s = sequence_of(p_, b);
      if (s.absent) continue;
      for (std::int64_t h = 0; h < p_.num_heads_q; ++h) bound_head(s, b, h);
    }
    return std::move(bounds_);
  }

 private:
  using FunctionsOfHead = backends::reference::FunctionsOfHead;
  using BlockMaskOfHead = backends::reference::BlockMaskOfHead;

  void bound_head(const Sequence& s, std::int64_t b, std::int64_t h) {
    FunctionsOfHead functions(functions_, p_.tables, b, h);
    BlockMaskOfHead blocks(block_mask_, p_.block_mask, b, h);
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) bound_row(s, functions, blocks, b, h, i);
  }

  [[nodiscard]] double cache_element(const device::Tensor4& cache, const ScaleTensor& scales, const CachePlace& at,
                                     std::int64_t b, std::int64_t h, std::int64_t d) const {
    const std::int64_t offset = at.row * cache.batch_stride + at.place * cache.seq_stride + h * cache.head_stride + d;
    const double stored = load_element(p_.cache_dtype, cache.data, offset);
    return p_.scales == CacheScales::none ? stored : stored * double{scales.load(b, at.row, at.place, h)};
  }

  /// The score of key j and its error.
  [[nodiscard]] std::pair<double, double> score(const Sequence& s, FunctionsOfHead& functions, std::int64_t b,
                                                std::int64_t h, std::int64_t i, std::int64_t j,
                                                const std::vector<double>& q) const {
    const std::int64_t position = i + s.diagonal();
    const CachePlace at = cache_place(p_, s, b, s.leftpad + j);
    const std::int64_t head_k = h / (p_.num_heads_q / p_.num_heads_k);
    double sum = 0.0, magnitude = 0.0;
    std::vector<double> k(static_cast<std::size_t>(p_.head_dim));
    for (std::int64_t d = 0; d < p_.head_dim; ++d) {
      k[static_cast<std::size_t>(d)] = cache_element(p_.k_cache, p_.k_scale, at, b, head_k, d);
      const double term = q[static_cast<std::size_t>(d)] * k[static_cast<std::size_t>(d)];
      sum += term;
      magnitude += std::abs(term);
    }
    const double scale = std::abs(double{p_.softmax_scale});
    double value = static_cast<float>(sum * p_.softmax_scale);
    double error = kU * (2.0 * std::sqrt(static_cast<double>(p_.head_dim)) + 8.0) * magnitude * scale;
    // An infinity's error is no number. A large score that is summed exactly and rounded once has none; those that
    // scales of fp8 multiply are rounded more than once.
    const bool exact =
        p_.scales == CacheScales::none && scale * magnitude > 16.0 && sums_exactly(q.data(), k.data(), p_.head_dim, kU);
    if (std::isinf(value) || exact) error = 0.0;
    if (p_.softcap > 0.0f) {
      value = static_cast<float>(p_.softcap * std::tanh(value / p_.softcap));
      error += 16.0 * kU * std::abs(value) + tanh_error_ * std::abs(value);
    }
    if (p_.alibi_slopes != nullptr) {
      const double slope = p_.alibi_slopes[b * p_.alibi_batch_stride + h * p_.alibi_head_stride];
      const double bias = slope * static_cast<double>(std::abs(position - j));
      value = static_cast<float>(value - bias);
      error += 4.0 * kU * bias;
    }
    return functions.modifies() ? modified(functions, value, error, position, j) : std::pair(value, error);
  }

  /// What score_mod makes of a score and its error: that of its values nearby, and of computing it in fp32.
  [[nodiscard]] static std::pair<double, double> modified(FunctionsOfHead& functions, double score, double error,
                                                          std::int64_t position, std::int64_t j) {
    const double value = static_cast<float>(functions.score(score, position, j));
    if (!std::isfinite(value)) return {value, 0.0};
    double modified_error = 4.0 * functions.lost_in_single(score, position, j)[0] + 16.0 * kU * std::abs(value);
    for (const double near : {score - error, score + error})
      modified_error = std::max(modified_error, std::abs(functions.score(near, position, j) - value));
    return {value, modified_error};
  }

  void bound_row(const Sequence& s, FunctionsOfHead& functions, BlockMaskOfHead& blocks, std::int64_t b, std::int64_t h,
                 std::int64_t i) {
    std::vector<std::int64_t> keys;
    device::for_each_seen_key(p_.key_indices, visible_keys(p_, s, i), b, s.q_row + i,
                              h / (p_.num_heads_q / p_.num_heads_k), [&](std::int64_t j) {
                                if (sees(blocks, functions, i + s.diagonal(), j)) keys.push_back(j);
                              });
    const double sink = p_.sink == nullptr ? -kInfinity : load_element(p_.sink_dtype, p_.sink, h * p_.sink_stride);
    const auto set_sink_alone = [&] {  // on its way through units of log2
      if (sink != -kInfinity) set("softmax_lse", lse_index(s, b, h, i), 8.0 * kU * (1.0 + std::abs(sink)));
    };
    if (keys.empty()) return set_sink_alone();
    const std::vector<double> q = query(s, b, h, i);
    std::vector<double> weight, error;
    double largest = sink;
    for (const std::int64_t j : keys) {
      const auto [value, off] = score(s, functions, b, h, i, j, q);
      weight.push_back(value);
      error.push_back(off);
      largest = std::max(largest, value);
    }
    if (special_) mark_reach(s, b, h, i, keys, weight);
    if (std::ranges::count(weight, -kInfinity) == std::ssize(weight)) return set_sink_alone();
    WeightRange range(largest);
    double sum = sink == -kInfinity ? 0.0 : std::exp(sink - largest);
    if (sink != -kInfinity) range.add(sink, 0.0);
    for (std::size_t n = 0; n < weight.size(); ++n) {
      if (weight[n] == -kInfinity) continue;  // hides its key
      if (error[n] != 0.0) error[n] += 4.0 * kU * std::abs(weight[n]);
      range.add(weight[n], error[n]);
      sum += std::exp(weight[n] - largest);
    }
    const double lse = largest + std::log(sum), sum_error = weigh(range, largest, sum, weight, error);
    set_row(s, b, h, i, keys, weight, error, sum_error);
    set("softmax_lse", lse_index(s, b, h, i),
        sum_error + (range.wide() ? range.log_error() : 0.0) + 8.0 * kU * std::abs(lse));
  }

  [[nodiscard]] static double terms_error(std::size_t terms) {
    return kU * (4.0 * std::sqrt(static_cast<double>(terms)) + 16.0);
  }

  /// Scores and their errors to weights and theirs, in place. Returns the relative error that their sum adds to each.
  [[nodiscard]] double weigh(const WeightRange& range, double largest, double sum, std::vector<double>& weight,
                             std::vector<double>& error) const {
    double sum_error = terms_error(weight.size());
    std::size_t added = range.size() - static_cast<std::size_t>(std::ranges::count_if(
                                           weight, [](double score) { return score != -kInfinity; }));  // the sink
    for (std::size_t n = 0; n < weight.size(); ++n) {
      if (weight[n] == -kInfinity) {
        weight[n] = error[n] = 0.0;
        continue;
      }
      const double score = weight[n], rounding = kU * (16.0 + 4.0 * (largest - score)) + 0.02 * r_;
      weight[n] = std::exp(score - largest) / sum;
      const double of_score = range.wide() ? range.error_of(added) : weight[n] * error[n];
      ++added;
      const double own = weight[n] > 0.0 ? weight[n] * rounding : 0.0;
      error[n] = of_score + own;
      sum_error += range.wide() ? own : error[n];
    }
    return sum_error;
  }

  /// Where a row's result may be, or must be, no number, by the scores of the keys that it sees.
  void mark_reach(const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i,
                  const std::vector<std::int64_t>& keys, const std::vector<double>& scores) {
    ErrorBounds* const found = find_bounds(bounds_, "out");
    const std::span row(found->reach.data() + out_index(s, b, h, i), static_cast<std::size_t>(p_.head_dim_v));
    std::vector<bool> seen(static_cast<std::size_t>(s.seqlen_k()), false);
    bool nan = false;
    for (std::size_t n = 0; n < keys.size(); ++n) {
      if (scores[n] != -kInfinity) seen[static_cast<std::size_t>(keys[n])] = true;
      nan |= !(scores[n] < kInfinity);
    }
    const bool sees = std::ranges::count(seen, true) > 0;
    for (std::int64_t j = 0; j < s.seqlen_k(); ++j) {
      if (seen[static_cast<std::size_t>(j)]) continue;
      // 0, the weight of what is hidden, times NaN.
      const CachePlace at = place_or_none(s, b, j);
      for (std::size_t d = 0; at.row >= 0 && d < row.size(); ++d)
        if (!std::isfinite(value_element(at, b, h, static_cast<std::int64_t>(d)))) row[d] = Reach::may;
    }
    if (!sees) std::ranges::fill(row, Reach::none);
    if (nan) std::ranges::fill(row, Reach::must_nan);
  }

  /// Of key j; row -1 where its table's entry, which no query needs, is no page.
  [[nodiscard]] CachePlace place_or_none(const Sequence& s, std::int64_t b, std::int64_t j) const {
    const CachePlace at = cache_place(p_, s, b, s.leftpad + j);
    return at.row < p_.cache_rows ? at : CachePlace{-1, 0};
  }
  [[nodiscard]] double value_element(const CachePlace& at, std::int64_t b, std::int64_t h, std::int64_t d) const {
    return cache_element(p_.v_cache, p_.v_scale, at, b, h / (p_.num_heads_q / p_.num_heads_k), d);
  }

  void set_row(const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i, const std::vector<std::int64_t>& keys,
               const std::vector<double>& weight, const std::vector<double>& error, double sum_error) {
    const std::int64_t head_k = h / (p_.num_heads_q / p_.num_heads_k);
    std::vector<double> limit(static_cast<std::size_t>(p_.head_dim_v));
    for (std::size_t n = 0; n < weight.size(); ++n) {
      if (weight[n] == 0.0 && error[n] == 0.0) continue;
      const CachePlace at = cache_place(p_, s, b, s.leftpad + keys[n]);
      for (std::int64_t d = 0; d < p_.head_dim_v; ++d)
        limit[static_cast<std::size_t>(d)] +=
            std::abs(cache_element(p_.v_cache, p_.v_scale, at, b, head_k, d)) *
            (error[n] + weight[n] * (sum_error + terms_error(weight.size()) + 1.02 * r_));
    }
    for (std::int64_t d = 0; d < p_.head_dim_v; ++d)
      set("out", out_index(s, b, h, i) + d, limit[static_cast<std::size_t>(d)] + smallest_rounding(DType::f32));
  }

  /// Rotated; the rounding to its dtype is the kernels' and the reference's alike.
  [[nodiscard]] std::vector<double> query(const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i) const {
    std::vector<double> q(static_cast<std::size_t>(p_.head_dim));
    const std::int64_t offset = b * p_.q.batch_stride + (s.q_row + i) * p_.q.seq_stride + h * p_.q.head_stride;
    for (std::int64_t d = 0; d < p_.head_dim; ++d)
      q[static_cast<std::size_t>(d)] = load_element(p_.dtype, p_.q.data, offset + d);
    const RotaryTables& r = p_.rotary;
    const std::int64_t position = r.dim > 0 ? rotary_position(p_, s, b) + (queries_advance(p_) ? i : 0) : 0;
    for (std::int64_t n = 0; n < r.dim / 2; ++n) {
      double& x = q[static_cast<std::size_t>(r.offset + (r.interleaved ? 2 * n : n))];
      double& y = q[static_cast<std::size_t>(r.offset + (r.interleaved ? 2 * n + 1 : n + r.dim / 2))];
      const double c = load_element(r.dtype, r.cos, position * r.cos_stride + n);
      const double sn = load_element(r.dtype, r.sin, position * r.sin_stride + n);
      const double first = x * c - y * sn, second = x * sn + y * c;
      x = first;
      y = second;
    }
    return q;
  }

  /// Row-major over the whole output.
  [[nodiscard]] std::int64_t out_index(const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i) const {
    const std::int64_t row = p_.packed ? s.q_row + i : b * p_.seqlen_q + i;
    return (row * p_.num_heads_q + h) * p_.head_dim_v;
  }
  [[nodiscard]] std::int64_t lse_index(const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i) const {
    return p_.packed ? h * p_.total_q + s.q_row + i : (b * p_.num_heads_q + h) * p_.seqlen_q + i;
  }

  void set(std::string_view name, std::int64_t index, double limit) {
    ErrorBounds* const found = find_bounds(bounds_, name);
    if (found == nullptr || !std::isfinite(limit)) return;
    found->limit[static_cast<std::size_t>(index)] = limit;
    // A weight that is rounded with its token's scale errs alike in every column.
    const double deviation = p_.scales == CacheScales::none ? 0.5 : 1.0;
    found->sigma[static_cast<std::size_t>(index)] = deviation * limit;
  }

  static constexpr double kU = 0x1p-24;
  const KvCacheParams& p_;
  backends::reference::ScoreFunctions functions_;
  BlockMaskShape block_mask_;
  bool special_;
  double tanh_error_;
  double r_;
  std::vector<ErrorBounds> bounds_;
};

}  // namespace

std::vector<ErrorBounds> kv_cache_bounds(const KvCacheParams& params, const KvCacheProblem& problem,
                                         const std::vector<Output>& expected, Values values, double tanh_error) {
  return Pass(params, problem, expected, values, tanh_error).run();
}

}  // namespace tilewise::verify
