// What both passes of the reference share: rows of any dtype as doubles, and the score s[i, j].
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/parallel.hpp"
#include "device/common/float16.h"
#include "device/common/mask.h"
#include "device/common/params.h"
#include "device/common/philox.h"
#include "tilewise/tensor.hpp"

namespace tilewise::backends::reference {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline double load(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::bf16:
      return device::bf16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case DType::f16:
      return device::f16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

/// Rounds to f32 first and then to nearest even again where dtype is narrower.
inline void store(DType dtype, void* data, std::int64_t index, double value) {
  const auto rounded = static_cast<float>(value);
  switch (dtype) {
    case DType::bf16:
      static_cast<std::uint16_t*>(data)[index] = device::float_to_bf16(rounded);
      break;
    case DType::f16:
      static_cast<std::uint16_t*>(data)[index] = device::float_to_f16(rounded);
      break;
    default:
      static_cast<float*>(data)[index] = rounded;
  }
}

/// Whether the job is abandoned, asked every so many rows or keys.
inline bool abandoned_at(std::int64_t index) { return index % 256 == 0 && core::abandoned(); }

/// Rows [0, count) of one head, `width` doubles each.
struct Rows {
  std::int64_t width;
  std::vector<double> values;
  Rows(std::int64_t count, std::int64_t row_width)
      : width(row_width), values(static_cast<std::size_t>(count * row_width)) {}
  double* operator[](std::int64_t row) { return values.data() + row * width; }
  const double* operator[](std::int64_t row) const { return values.data() + row * width; }
};

/// One head of a [batch, seq, head, dim] tensor, whose rows count from `first_row`.
struct Head {
  device::Tensor4 tensor;
  DType dtype;
  std::int64_t offset, width;  // of element [first_row, 0]; the last dimension

  Head(const device::Tensor4& t, DType type, std::int64_t b, std::int64_t first_row, std::int64_t h, std::int64_t dim)
      : tensor(t), dtype(type), offset(b * t.batch_stride + first_row * t.seq_stride + h * t.head_stride), width(dim) {}

  void read(std::int64_t row, double* to) const {
    for (std::int64_t d = 0; d < width; ++d) to[d] = load(dtype, tensor.data, offset + row * tensor.seq_stride + d);
  }
  void write(std::int64_t row, const double* from) const {
    for (std::int64_t d = 0; d < width; ++d) store(dtype, tensor.data, offset + row * tensor.seq_stride + d, from[d]);
  }
  [[nodiscard]] Rows read_rows(std::int64_t count) const {
    Rows rows(count, width);
    for (std::int64_t i = 0; i < count && !abandoned_at(i); ++i) read(i, rows[i]);
    return rows;
  }
};

inline double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t d = 0; d < n; ++d) sum += a[d] * b[d];
  return sum;
}

/// s[i, j], and its derivative by the score before softcap. The value is -inf where bias hides j.
struct Score {
  double value, slope;
  /// Of those that mask and window leave: a NaN is seen.
  [[nodiscard]] bool visible() const { return value != -kInfinity; }
};

/// One query head of one sequence: what the score and the dropout mask depend on besides q and k.
struct HeadContext {
  const device::AttentionParams& p;
  device::Sequence sequence;
  std::int64_t b, h, diagonal;

  HeadContext(const device::AttentionParams& params, std::int64_t batch, std::int64_t head)
      : p(params), sequence(device::sequence_of(params, batch)), b(batch), h(head) {
    diagonal = device::diagonal_offset(p, sequence);
  }

  [[nodiscard]] device::KeyRange keys(std::int64_t i) const { return device::visible_keys(p, sequence, diagonal, i); }

  [[nodiscard]] double bias(std::int64_t i, std::int64_t j) const {
    const device::BiasTensor& t = p.bias;
    const std::int64_t index =
        b * t.batch_stride + h * t.head_stride + i * t.query_stride + (sequence.leftpad + j) * t.key_stride;
    switch (p.bias_type) {
      case device::kBiasF32:
        return load(DType::f32, t.data, index);
      case device::kBiasBf16:
        return load(DType::bf16, t.data, index);
      case device::kBiasF16:
        return load(DType::f16, t.data, index);
      case device::kBiasBool:
        return static_cast<const std::uint8_t*>(t.data)[index] ? 0.0 : -kInfinity;
      default:
        return 0.0;
    }
  }

  [[nodiscard]] Score score(std::int64_t i, std::int64_t j, const double* q, const double* k) const {
    const double bias_value = bias(i, j);
    if (p.bias_type == device::kBiasBool && bias_value != 0.0)
      return {-kInfinity, 1.0};  // before any number is looked at
    double s = double{p.softmax_scale} * dot(q, k, p.head_dim), slope = 1.0;
    if (p.softcap > 0) {
      const double t = std::tanh(s / double{p.softcap});
      s = double{p.softcap} * t;
      slope = 1.0 - t * t;
    }
    s += bias_value;
    if (p.alibi_slopes) {
      const float alibi = p.alibi_slopes[b * p.alibi_batch_stride + h * p.alibi_head_stride];
      s -= double{alibi} * static_cast<double>(std::llabs(i + diagonal - j));
    }
    return {s, slope};
  }

  /// -inf where there is no sink.
  [[nodiscard]] double sink() const { return p.sink ? double{p.sink[h * p.sink_stride]} : -kInfinity; }

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

void forward(const device::AttentionParams& params, DType dtype);
void backward(const device::AttentionParams& params, DType dtype);

}  // namespace tilewise::backends::reference
