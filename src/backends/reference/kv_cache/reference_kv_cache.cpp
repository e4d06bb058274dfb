// The KV cache step of docs/semantics.md: append token by token, then attend one query row after the other.
#include "backends/reference/kv_cache/reference_kv_cache.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backends/reference/block_mask.hpp"
#include "backends/reference/score_functions.hpp"
#include "core/parallel.hpp"
#include "device/common/selected.h"
#include "operations/elements.hpp"
#include "operations/kv_cache/kv_cache.hpp"
#include "operations/kv_cache/sequence.hpp"

namespace tilewise::backends {
namespace reference {
namespace {

using operations::load_element, operations::store_element;
using operations::kv_cache::CachePlace, operations::kv_cache::KvCacheParams, operations::kv_cache::ScaleTensor;
using operations::kv_cache::KeyRange, operations::kv_cache::Sequence;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargestE4m3 = 448.0;

/// Element [b, row, h, 0] of a tensor.
std::int64_t row_offset(const device::Tensor4& t, std::int64_t b, std::int64_t row, std::int64_t h) {
  return b * t.batch_stride + row * t.seq_stride + h * t.head_stride;
}

std::vector<double> read_row(const device::Tensor4& t, DType dtype, std::int64_t offset, std::int64_t dim) {
  std::vector<double> row(static_cast<std::size_t>(dim));
  for (std::int64_t d = 0; d < dim; ++d) row[static_cast<std::size_t>(d)] = load_element(dtype, t.data, offset + d);
  return row;
}

/// Rotates a row to its position: the result in fp32.
void rotate(const operations::kv_cache::RotaryTables& r, std::int64_t position, std::vector<double>& row) {
  const std::int64_t half = r.dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const auto x = static_cast<std::size_t>(r.offset + (r.interleaved ? 2 * i : i));
    const auto y = static_cast<std::size_t>(r.offset + (r.interleaved ? 2 * i + 1 : i + half));
    const double c = load_element(r.dtype, r.cos, position * r.cos_stride + i);
    const double s = load_element(r.dtype, r.sin, position * r.sin_stride + i);
    const double first = row[x] * c - row[y] * s, second = row[x] * s + row[y] * c;
    row[x] = static_cast<float>(first);
    row[y] = static_cast<float>(second);
  }
}

/// The scale of one token and head: its largest value becomes e4m3's. A NaN has no say.
float scale_of(const std::vector<double>& row) {
  double largest = 0.0;
  for (const double value : row) {
    if (std::abs(value) > largest) largest = std::abs(value);
  }
  const auto scale = static_cast<float>(largest / kLargestE4m3);
  return scale > 0.0f ? scale : 1.0f;
}

/// One row of keys or values to its place, rounded once.
void append_row(const KvCacheParams& p, const std::vector<double>& row, const device::Tensor4& cache,
                const ScaleTensor& scales, std::int64_t b, const CachePlace& place, std::int64_t h) {
  const std::int64_t offset = row_offset(cache, place.row, place.place, h);
  double scale = 1.0;
  if (p.scales == CacheScales::token) *scales.at(b, place.row, place.place, h) = scale_of(row);
  if (p.scales != CacheScales::none) scale = scales.load(b, place.row, place.place, h);
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(row.size()); ++d)
    store_element(p.cache_dtype, cache.data, offset + d, row[static_cast<std::size_t>(d)] / scale);
}

void append_sequence(const KvCacheParams& p, std::int64_t b) {
  const Sequence s = sequence_of(p, b);
  const std::int64_t position = p.rotary.dim > 0 ? rotary_position(p, s, b) : 0;
  for (std::int64_t t = 0; t < s.seqlen_new && !core::abandoned(); ++t) {
    const CachePlace place = new_place(p, s, b, t);
    if (place.row < 0) continue;
    for (std::int64_t h = 0; h < p.num_heads_k; ++h) {
      std::vector<double> k = read_row(p.k, p.dtype, row_offset(p.k, b, s.new_row + t, h), p.head_dim);
      if (p.rotary.dim > 0) rotate(p.rotary, position + t, k);
      append_row(p, k, p.k_cache, p.k_scale, b, place, h);
      if (p.mla) continue;
      append_row(p, read_row(p.v, p.dtype, row_offset(p.v, b, s.new_row + t, h), p.head_dim_v), p.v_cache, p.v_scale, b,
                 place, h);
    }
  }
}

/// What the query heads of one key head read of one sequence's cache.
class CacheRows {
 public:
  CacheRows(const KvCacheParams& p, const Sequence& s, std::int64_t b, std::int64_t head_k)
      : p_(p), s_(s), b_(b), head_k_(head_k), needed_(needed_keys(p, s)) {
    for (std::int64_t j = needed_.begin; j < needed_.end && !core::abandoned(); ++j) {
      keys_.push_back(row(p.k_cache, p.k_scale, p.head_dim, j));
      values_.push_back(row(p.v_cache, p.v_scale, p.head_dim_v, j));
    }
  }

  [[nodiscard]] const std::vector<double>& key(std::int64_t j) const { return keys_[index(j)]; }
  [[nodiscard]] const std::vector<double>& value(std::int64_t j) const { return values_[index(j)]; }

 private:
  [[nodiscard]] std::vector<double> row(const device::Tensor4& cache, const ScaleTensor& scales, std::int64_t dim,
                                        std::int64_t j) const {
    const CachePlace at = cache_place(p_, s_, b_, s_.leftpad + j);
    std::vector<double> values = read_row(cache, p_.cache_dtype, row_offset(cache, at.row, at.place, head_k_), dim);
    if (p_.scales == CacheScales::none) return values;
    const double scale = scales.load(b_, at.row, at.place, head_k_);
    for (double& value : values) value *= scale;
    return values;
  }

  [[nodiscard]] std::size_t index(std::int64_t j) const { return static_cast<std::size_t>(j - needed_.begin); }

  const KvCacheParams& p_;
  const Sequence& s_;
  std::int64_t b_, head_k_;
  KeyRange needed_;
  std::vector<std::vector<double>> keys_, values_;
};

double sink_of(const KvCacheParams& p, std::int64_t h) {
  return p.sink == nullptr ? -kInfinity : load_element(p.sink_dtype, p.sink, h * p.sink_stride);
}

/// What a problem says of scores beside their numbers, read once ...
struct OfScores {
  ScoreFunctions functions;
  BlockMaskShape block_mask;
  explicit OfScores(const KvCacheProblem& p) : functions(p), block_mask(p.block_mask) {}
};
/// ... and that of one query head of one sequence.
struct ScoresOfHead {
  FunctionsOfHead functions;
  BlockMaskOfHead blocks;
};

/// Rounded to fp32 after each step, as the formula has it. -infinity where the key is hidden.
double score_of(const KvCacheParams& p, const Sequence& s, ScoresOfHead& scores, std::int64_t b, std::int64_t h,
                std::int64_t i, std::int64_t j, const std::vector<double>& q, const std::vector<double>& k) {
  const std::int64_t position = i + s.diagonal();
  if (!sees(scores.blocks, scores.functions, position, j)) return -kInfinity;
  double score = 0.0;
  for (std::size_t d = 0; d < q.size(); ++d) score += q[d] * k[d];
  score = static_cast<float>(score * p.softmax_scale);
  if (p.softcap > 0.0f) score = static_cast<float>(p.softcap * std::tanh(score / p.softcap));
  if (p.alibi_slopes != nullptr) {
    const double slope = p.alibi_slopes[b * p.alibi_batch_stride + h * p.alibi_head_stride];
    score = static_cast<float>(score - slope * static_cast<double>(std::abs(position - j)));
  }
  FunctionsOfHead& functions = scores.functions;
  return functions.modifies() ? static_cast<float>(functions.score(score, position, j)) : score;
}

/// Writes a row's output and returns its log-sum-exp.
double attend_row(const KvCacheParams& p, const Sequence& s, const CacheRows& cache, ScoresOfHead& scores,
                  std::int64_t b, std::int64_t h, std::int64_t i, const std::vector<double>& q,
                  std::vector<double>& out) {
  const KeyRange keys = visible_keys(p, s, i);
  std::vector<std::pair<std::int64_t, double>> visible;  // keys and their scores
  const double sink = sink_of(p, h);
  double maximum = sink;
  device::for_each_seen_key(p.key_indices, keys, b, s.q_row + i, h / (p.num_heads_q / p.num_heads_k),
                            [&](std::int64_t j) {
                              if (core::abandoned()) return;
                              const double score = score_of(p, s, scores, b, h, i, j, q, cache.key(j));
                              if (score == -kInfinity) return;
                              visible.emplace_back(j, score);
                              maximum = std::max(maximum, score);  // a NaN is passed over: it makes the sum one
                            });
  if (visible.empty()) return sink;
  double sum = sink == -kInfinity ? 0.0 : std::exp(sink - maximum);
  for (auto& [j, weight] : visible) {
    weight = std::exp(weight - maximum);
    sum += weight;
  }
  for (const auto& [j, weight] : visible) {
    const std::vector<double>& value = cache.value(j);
    for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight / sum * value[d];
  }
  return maximum + std::log(sum);
}

/// Rotated, and rounded to its dtype.
std::vector<double> query(const KvCacheParams& p, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i) {
  std::vector<double> q = read_row(p.q, p.dtype, row_offset(p.q, b, s.q_row + i, h), p.head_dim);
  if (p.rotary.dim == 0) return q;
  rotate(p.rotary, rotary_position(p, s, b) + (queries_advance(p) ? i : 0), q);
  std::vector<std::byte> rounded(size_of(p.dtype));
  for (double& value : q) {
    store_element(p.dtype, rounded.data(), 0, value);
    value = load_element(p.dtype, rounded.data(), 0);
  }
  return q;
}

/// Calls visit(sequence, i, out, lse) with the result of each query of a head.
template <typename Visit>
void attend_head(const KvCacheParams& p, const OfScores& of_scores, std::int64_t b, std::int64_t h,
                 const Visit& visit) {
  const Sequence s = sequence_of(p, b);
  ScoresOfHead scores{{of_scores.functions, p.tables, b, h}, {of_scores.block_mask, p.block_mask, b, h}};
  const CacheRows cache(p, s, b, h / (p.num_heads_q / p.num_heads_k));
  for (std::int64_t i = 0; i < s.seqlen_q && !core::abandoned(); ++i) {
    std::vector<double> out(static_cast<std::size_t>(p.head_dim_v));
    double lse = -kInfinity;
    if (!s.absent) lse = attend_row(p, s, cache, scores, b, h, i, query(p, s, b, h, i), out);
    visit(s, i, out, lse);
  }
  scores.functions.check();
}

void store_head(const KvCacheParams& p, const OfScores& of_scores, std::int64_t b, std::int64_t h) {
  attend_head(p, of_scores, b, h, [&](const Sequence& s, std::int64_t i, const std::vector<double>& out, double lse) {
    const std::int64_t offset = row_offset(p.out, b, s.q_row + i, h);
    for (std::int64_t d = 0; d < p.head_dim_v; ++d)
      store_element(p.dtype, p.out.data, offset + d, out[static_cast<std::size_t>(d)]);
    if (p.softmax_lse.data == nullptr) return;
    const device::LseTensor& t = p.softmax_lse;
    t.data[b * t.batch_stride + h * t.head_stride + (s.q_row + i) * t.seq_stride] = static_cast<float>(lse);
  });
}

/// Calls visit(b, h) for every sequence and query head, side by side.
template <typename Visit>
void for_each_head(const KvCacheParams& p, const Visit& visit) {
  core::parallel_for(p.batch_size * p.num_heads_q,
                     [&](std::int64_t task, int) { visit(task / p.num_heads_q, task % p.num_heads_q); });
}

class KvCacheKernel final : public operations::kv_cache::Kernel {
 public:
  explicit KvCacheKernel(const KvCacheProblem& problem) : of_scores_(problem) {}

  [[nodiscard]] std::size_t workspace_size() const noexcept override { return 0; }
  [[nodiscard]] std::string schedule() const override { return "f64, one token and one query row at a time"; }
  void launch(const KvCacheParams& p, void*, void*) const override {
    if (p.append) core::parallel_for(p.batch_size, [&](std::int64_t b, int) { append_sequence(p, b); });
    if (!p.attends) return;
    for_each_head(p, [&](std::int64_t b, std::int64_t h) { store_head(p, of_scores_, b, h); });
  }

 private:
  OfScores of_scores_;
};

class KvCacheImplementation final : public operations::kv_cache::Implementation {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "reference"; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::kv_cache::FeatureSet supported() const noexcept override {
    using enum operations::kv_cache::Feature;
    return {attend,
            append,
            f32,
            bf16,
            f16,
            fp8,
            scale_tensor,
            scale_head,
            scale_batch_head,
            scale_token,
            paged,
            packed,
            mla,
            slots,
            cache_seqlens,
            cache_batch_idx,
            cache_leftpad,
            rotary,
            rotary_interleaved,
            gqa,
            head_dim_v,
            window_left,
            window_right,
            scale_sign,
            softcap,
            alibi,
            sink,
            num_splits,
            batch_invariant,
            score_mod,
            mask_mod,
            key_indices,
            block_mask};
  }

  /// The order of magnitude, on one thread. Each cost is above what any faster implementation has in its place.
  [[nodiscard]] core::Verdict judge(const KvCacheProblem& p, const core::DeviceDescription&) const override {
    constexpr double kCallUs = 20.0, kRowUs = 1.0, kElementUs = 0.02;
    const auto f = [](std::int64_t n) { return static_cast<double>(n); };
    const double dims = f(p.head_dim + p.head_dim_v);
    const double rows = f(operations::kv_cache::rows_of_queries(p)) * f(p.num_heads_q);
    const double scores = rows * f(operations::kv_cache::capacity_of(p));
    const double appended = f(operations::kv_cache::rows_of_new_keys(p)) * f(p.num_heads_k);
    return core::Verdict::accept(kCallUs + (rows + appended) * kRowUs + (scores + appended) * dims * kElementUs,
                                 std::make_unique<KvCacheKernel>(p));
  }
};

}  // namespace
}  // namespace reference

void check_cache_look_ups(const operations::kv_cache::KvCacheParams& p, const KvCacheProblem& problem) {
  const reference::OfScores of_scores(problem);
  reference::for_each_head(
      p, [&](std::int64_t b, std::int64_t h) { reference::attend_head(p, of_scores, b, h, [](auto&&...) {}); });
}

const core::Implementation& reference_kv_cache_implementation() {
  static const reference::KvCacheImplementation implementation;
  return implementation;
}

}  // namespace tilewise::backends
