// What both passes of the reference share: rows of any dtype as doubles, and the score s[i, j]. `Real` is what
// is computed in: double, and long double where results are f64.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "backends/reference/block_mask.hpp"
#include "backends/reference/score_functions.hpp"
#include "core/device.hpp"
#include "core/message.hpp"
#include "core/parallel.hpp"
#include "device/common/mask.h"
#include "device/common/params.h"
#include "device/common/philox.h"
#include "device/common/selected.h"
#include "operations/attention/factors.hpp"
#include "operations/attention/features.hpp"
#include "operations/attention/rules.hpp"
#include "operations/elements.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::backends::reference {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

using operations::load_element, operations::store_element;

/// Whether the job is abandoned, asked every so many rows or keys.
inline bool abandoned_at(std::int64_t index) { return index % 256 == 0 && core::abandoned(); }

/// What the formulas below honour.
[[nodiscard]] inline operations::attention::FeatureSet features() {
  using enum operations::attention::Feature;
  return {f32,       bf16,         f16,         f64,         fp8_e4m3,      f16_out,         forward,    backward,
          gqa,       head_dim_v,   packed,      window_left, window_right,  top_left,        scale_sign, softcap,
          bias,      bias_boolean, dbias,       alibi,       sink,          dsink,           dropout,    seed_tensor,
          seqused_q, seqused_k,    leftpad_k,   dlse,        deterministic, batch_invariant, clear_rest, score_mod,
          mask_mod,  dtables,      key_indices, block_mask};
}

/// Element types of a call, and the factors and functions of its scores.
struct Numbers {
  DType dtype, out_dtype, statistics;
  device::ScoreFactors factors;
  ScoreFunctions functions;
  BlockMaskShape block_mask;
  explicit Numbers(const Problem& problem)
      : dtype(problem.dtype),
        out_dtype(operations::attention::out_dtype_of(problem)),
        statistics(operations::statistics_dtype(problem.dtype)),
        factors(operations::attention::score_factors(problem)),
        functions(problem),
        block_mask(problem.block_mask) {}

  /// A score as the formula has it after each of its steps: a number of fp32, or of f64 where q is.
  template <typename Real>
  [[nodiscard]] Real rounded(Real score) const {
    return statistics == DType::f64 ? Real{static_cast<double>(score)} : Real{static_cast<float>(score)};
  }
};

/// Rows [0, count) of one head, `width` numbers each.
template <typename Real>
struct RowsOf {
  std::int64_t width;
  std::vector<Real> values;
  RowsOf(std::int64_t count, std::int64_t row_width)
      : width(row_width), values(static_cast<std::size_t>(count * row_width)) {}
  Real* operator[](std::int64_t row) { return values.data() + row * width; }
  const Real* operator[](std::int64_t row) const { return values.data() + row * width; }
};
using Rows = RowsOf<double>;

/// One head of a [batch, seq, head, dim] tensor, whose rows count from `first_row`.
struct Head {
  device::Tensor4 tensor;
  DType dtype;
  std::int64_t offset, width;  // of element [first_row, 0]; the last dimension

  Head(const device::Tensor4& t, DType type, std::int64_t b, std::int64_t first_row, std::int64_t h, std::int64_t dim)
      : tensor(t), dtype(type), offset(b * t.batch_stride + first_row * t.seq_stride + h * t.head_stride), width(dim) {}

  void read(std::int64_t row, double* to) const {
    for (std::int64_t d = 0; d < width; ++d)
      to[d] = load_element(dtype, tensor.data, offset + row * tensor.seq_stride + d);
  }
  template <typename Real>
  void write(std::int64_t row, const Real* from) const {
    for (std::int64_t d = 0; d < width; ++d)
      store_element(dtype, tensor.data, offset + row * tensor.seq_stride + d, static_cast<double>(from[d]));
  }
  [[nodiscard]] Rows read_rows(std::int64_t count) const {
    Rows rows(count, width);
    for (std::int64_t i = 0; i < count && !abandoned_at(i); ++i) read(i, rows[i]);
    return rows;
  }
};

template <typename Real = double>
Real dot(const double* a, const double* b, std::int64_t n) {
  Real sum = 0;
  for (std::int64_t d = 0; d < n; ++d) sum += Real{a[d]} * b[d];
  return sum;
}

/// s[i, j], its derivative by the score before softcap without score_mod's, what it is before the bias and before
/// score_mod, and score_mod's derivative there. The value is -inf where bias or mask_mod hide j.
template <typename Real>
struct Score {
  Real value, slope, unbiased, unmodified, mod_slope = 1;
  /// Of those that mask and window leave: a NaN is seen.
  [[nodiscard]] bool visible() const { return value != -kInfinity; }
};

/// One query head of one sequence: what the score and the dropout mask depend on besides q and k.
struct HeadContext {
  const device::AttentionParams& p;
  const Numbers& numbers;
  device::Sequence sequence;
  std::int64_t b, h, diagonal;
  double softmax_scale, value_scale;  // of products of what is stored, and of stored values
  mutable FunctionsOfHead functions;  // their memory for what is between
  mutable BlockMaskOfHead blocks;     // likewise for a row

  HeadContext(const device::AttentionParams& params, const Numbers& of_call, std::int64_t batch, std::int64_t head)
      : p(params),
        numbers(of_call),
        sequence(device::sequence_of(params, batch)),
        b(batch),
        h(head),
        functions(of_call.functions, params.tables, batch, head),
        blocks(of_call.block_mask, params.block_mask, batch, head) {
    diagonal = device::diagonal_offset(p, sequence);
    const std::int64_t h_k = h / (p.num_heads_q / p.num_heads_k);
    softmax_scale = numbers.factors.softmax_scale * p.q_scale.of(b, h) * p.k_scale.of(b, h_k);
    value_scale = p.v_scale.of(b, h_k);
  }

  [[nodiscard]] device::KeyRange keys(std::int64_t i) const { return device::visible_keys(p, sequence, diagonal, i); }
  /// Calls visit(j) for each key that selection, mask and window leave to query i, as often as it is selected.
  template <typename Visit>
  void for_each_key(std::int64_t i, const Visit& visit) const {
    device::for_each_seen_key(p.key_indices, keys(i), b, sequence.q_row + i, h / (p.num_heads_q / p.num_heads_k),
                              [&](std::int64_t j) {
                                if (!abandoned_at(j)) visit(j);
                              });
  }

  [[nodiscard]] double bias(std::int64_t i, std::int64_t j) const {
    const device::BiasTensor& t = p.bias;
    const std::int64_t index =
        b * t.batch_stride + h * t.head_stride + i * t.query_stride + (sequence.leftpad + j) * t.key_stride;
    if (p.bias_type == device::kBiasNone) return 0.0;
    if (p.bias_type == device::kBiasBool) return static_cast<const std::uint8_t*>(t.data)[index] ? 0.0 : -kInfinity;
    return load_element(operations::dtype_of(p.bias_type), t.data, index);
  }

  template <typename Real = double>
  [[nodiscard]] Score<Real> score(std::int64_t i, std::int64_t j, const double* q, const double* k) const {
    const double bias_value = bias(i, j);
    if (p.bias_type == device::kBiasBool && bias_value != 0.0)
      return {-kInfinity, 1, 0, 0};  // before any number is looked at
    if (!sees(i, j)) return {-kInfinity, 1, 0, 0};
    const Real cap = numbers.factors.softcap;
    Real s = numbers.rounded(softmax_scale * dot<Real>(q, k, p.head_dim)), slope = 1;
    if (cap > 0) {
      const Real t = std::tanh(s / cap);
      s = numbers.rounded(cap * t);
      slope = 1 - t * t;
    }
    const Real unbiased = s;
    if (p.bias_type != device::kBiasNone) s = numbers.rounded(s + bias_value);
    if (p.alibi_slopes) s = numbers.rounded(s - alibi<Real>(i, j));
    if (!numbers.functions.score_mod) return {s, slope, unbiased, s};
    const auto score = static_cast<double>(s);  // which it is, being rounded
    return {numbers.rounded(Real{functions.score(score, i, j)}), slope, unbiased, s, functions.slope(score, i, j)};
  }

  [[nodiscard]] bool sees(std::int64_t i, std::int64_t j) const { return reference::sees(blocks, functions, i, j); }

  /// Throws where a look-up was out of range and TILEWISE_CHECK=1 asks.
  void check_look_ups() const { functions.check(); }

  /// What ALiBi takes from a score.
  template <typename Real = double>
  [[nodiscard]] Real alibi(std::int64_t i, std::int64_t j) const {
    if (!p.alibi_slopes) return 0;
    const std::int64_t at = b * p.alibi_batch_stride + h * p.alibi_head_stride;
    return Real{load_element(numbers.statistics, p.alibi_slopes, at)} * static_cast<Real>(std::llabs(i + diagonal - j));
  }

  /// -inf where there is no sink.
  [[nodiscard]] double sink() const {
    return p.sink.data ? load_element(operations::dtype_of(p.sink.type), p.sink.data, h * p.sink.stride) : -kInfinity;
  }

  /// 0 where position (i, j) is dropped, else the scale of kept values.
  [[nodiscard]] double dropout(std::int64_t i, std::int64_t j) const {
    if (p.dropout_threshold == 0) return 1.0;
    const std::uint64_t seed = p.seed_and_offset ? static_cast<std::uint64_t>(p.seed_and_offset[0]) : p.seed;
    const std::uint64_t offset =
        p.seed_and_offset ? static_cast<std::uint64_t>(p.seed_and_offset[p.seed_and_offset_stride]) : p.offset;
    const std::uint32_t draw = device::dropout_draw(seed, offset, static_cast<std::uint32_t>(b * p.num_heads_q + h),
                                                    static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j));
    return draw < p.dropout_threshold ? 0.0 : 65536.0 / (65536.0 - p.dropout_threshold);
  }
};

/// Where element (row i of the used queries) of softmax_lse or dlse is.
inline std::int64_t lse_index(const device::LseTensor& t, const HeadContext& c, std::int64_t i) {
  return c.b * t.batch_stride + c.h * t.head_stride + (c.sequence.q_row + i) * t.seq_stride;
}

/// Row i of the used queries in softmax_lse or dlse.
inline double load_lse(const device::LseTensor& t, const HeadContext& c, std::int64_t i) {
  return load_element(c.numbers.statistics, t.data, lse_index(t, c, i));
}

void forward(const device::AttentionParams& params, const Numbers& numbers);
void backward(const device::AttentionParams& params, const Numbers& numbers, const Problem& problem);

}  // namespace tilewise::backends::reference
