// The skeleton's kernel, what it supports, and what it costs: three things in one file, because
// they change together.
#include "skeleton_backend.hpp"

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "core/parallel.hpp"
#include "device/common/mask.h"
#include "operations/attention/attention.hpp"

namespace tilewise::examples {
namespace {

// ---- 1. The kernel: obeys its parameters, decides nothing -----------------------------------

/// A row of a [batch, seq, head, dim] tensor. `row` counts as device::Sequence's q_row and k_row do.
float* row_of(const device::Tensor4& t, std::int64_t b, std::int64_t row, std::int64_t head) {
  return static_cast<float*>(t.data) + b * t.batch_stride + row * t.seq_stride + head * t.head_stride;
}

/// One query row: acc[head_dim_v] becomes the output. Returns the row's log-sum-exp.
float attend(const device::AttentionParams& p, const device::Sequence& s, device::KeyRange keys, std::int64_t b,
             std::int64_t h_k, const float* q, float* acc) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float maximum = -kInfinity, sum = 0.0f;
  for (std::int64_t d = 0; d < p.head_dim_v; ++d) acc[d] = 0.0f;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const float *k = row_of(p.k, b, s.k_row + j, h_k), *v = row_of(p.v, b, s.k_row + j, h_k);
    float score = 0.0f;
    for (std::int64_t d = 0; d < p.head_dim; ++d) score += q[d] * k[d];
    score *= p.softmax_scale;
    if (score == -kInfinity) continue;  // not visible, by definition
    if (score > maximum) {
      const float shrink = std::exp(maximum - score);
      for (std::int64_t d = 0; d < p.head_dim_v; ++d) acc[d] *= shrink;
      sum *= shrink;
      maximum = score;
    }
    const float weight = std::exp(score - maximum);  // 1 for the largest; NaN of NaN and of +inf, which must show
    sum += weight;
    for (std::int64_t d = 0; d < p.head_dim_v; ++d) acc[d] += weight * v[d];
  }
  if (sum == 0.0f) return -kInfinity;  // a row that sees nothing: out 0, lse -inf
  for (std::int64_t d = 0; d < p.head_dim_v; ++d) acc[d] /= sum;
  return maximum + std::log(sum);
}

void attend_head(const device::AttentionParams& p, std::int64_t b, std::int64_t h) {
  const device::Sequence s = device::sequence_of(p, b);
  const std::int64_t diagonal = device::diagonal_offset(p, s), h_k = h / (p.num_heads_q / p.num_heads_k);
  for (std::int64_t i = 0; i < s.all_q; ++i) {
    // Rows outside the used part are written too: out 0, lse -inf.
    const device::KeyRange keys = i < s.seqlen_q ? device::visible_keys(p, s, diagonal, i) : device::KeyRange{0, 0};
    const std::int64_t row = s.q_row + i;
    const float lse = attend(p, s, keys, b, h_k, row_of(p.q, b, row, h), row_of(p.out, b, row, h));
    const device::LseTensor& t = p.softmax_lse;
    if (t.data != nullptr) t.data[b * t.batch_stride + h * t.head_stride + row * t.seq_stride] = lse;
  }
}

/// What judge() decides from the Problem lives here: tile sizes, splits, workspace. The skeleton has none.
class SkeletonKernel final : public operations::attention::Kernel {
 public:
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return 0; }
  [[nodiscard]] std::string schedule() const override { return "one query row at a time"; }
  void launch(const device::AttentionParams& params, void*, void*) const override {
    core::parallel_for(params.batch_size * params.num_heads_q, [&](std::int64_t task, int) {
      attend_head(params, task / params.num_heads_q, task % params.num_heads_q);
    });
  }
};

// ---- 2. The row of the table: what is honoured, and what it costs ---------------------------

class SkeletonImplementation final : public operations::attention::Implementation {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "example.skeleton"; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }

  /// The only place that says so. A problem that needs anything else never reaches judge().
  [[nodiscard]] operations::attention::FeatureSet supported() const noexcept override {
    using enum operations::attention::Feature;
    return {forward,  f32,        gqa,       head_dim_v, packed,    window_left,   window_right,
            top_left, scale_sign, seqused_q, seqused_k,  leftpad_k, deterministic, batch_invariant};
  }

  /// Limits that are no features (sizes, alignment, what this machine has) refuse here, with a reason.
  [[nodiscard]] core::Verdict judge(const Problem& problem, const core::DeviceDescription&) const override {
    constexpr std::int64_t kMaxHeadDim = 256;
    if (problem.head_dim > kMaxHeadDim) {
      return core::Verdict::refuse("head_dim must be <= 256 (got " + std::to_string(problem.head_dim) + ")");
    }
    constexpr double kFlopsPerMicrosecond = 1000.0;
    const double pairs = static_cast<double>(problem.batch_size * problem.num_heads_q) *
                         static_cast<double>(problem.seqlen_q) * static_cast<double>(problem.seqlen_k);
    const double flops = 2.0 * pairs * static_cast<double>(problem.head_dim + problem.head_dim_v);
    return core::Verdict::accept(1.0 + flops / kFlopsPerMicrosecond, std::make_unique<SkeletonKernel>());
  }
};

}  // namespace

const core::Implementation& skeleton_implementation() {
  static const SkeletonImplementation implementation;
  return implementation;
}

}  // namespace tilewise::examples
