// Partial results over disjoint keys to one; see merge_splits.hpp.
#include "backends/cpu/merge_splits.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "backends/cpu/rows.hpp"
#include "core/parallel.hpp"
#include "device/common/float16.h"

namespace tilewise::backends::cpu {
namespace {

constexpr float kNothingSeen = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;
constexpr std::int64_t kLargestHeadDim = 512;

void store(ElementIndex element, float value, void* row, std::int64_t index) {
  if (element == kElementF32) {
    static_cast<float*>(row)[index] = value;
  } else if (element == kElementBf16) {
    static_cast<std::uint16_t*>(row)[index] = device::float_to_bf16(value);
  } else {
    static_cast<std::uint16_t*>(row)[index] = device::float_to_f16(value);
  }
}

/// A row's splits, reduced in ascending order.
struct Merged {
  std::array<float, kLargestHeadDim> out;
  float lse;

  Merged(const float* parts, std::int64_t num_splits, std::int64_t head_dim_v, const float* sink, float dropout_scale) {
    const std::int64_t stride = head_dim_v + 2;
    float reference = sink ? *sink * kLog2E : kNothingSeen;
    bool seen = false;
    for (std::int64_t n = 0; n < num_splits; ++n) {
      const float part = parts[n * stride + head_dim_v];
      seen |= part != kNothingSeen;
      if (part > reference) reference = part;
    }
    std::fill_n(out.begin(), head_dim_v, 0.0f);
    lse = sink ? *sink : kNothingSeen;
    if (!seen) return;
    float sum = sink ? std::exp2(*sink * kLog2E - reference) : 0.0f;
    for (std::int64_t n = 0; n < num_splits; ++n) {
      const float* part = parts + n * stride;
      if (part[head_dim_v] == kNothingSeen) continue;
      const float scale = std::exp2(part[head_dim_v] - reference);
      sum += part[head_dim_v + 1] * scale;
      for (std::int64_t d = 0; d < head_dim_v; ++d) out[static_cast<std::size_t>(d)] += part[d] * scale;
    }
    const float factor = dropout_scale / sum;
    for (std::int64_t d = 0; d < head_dim_v; ++d) out[static_cast<std::size_t>(d)] *= factor;
    lse = (reference + std::log2(sum)) * kLn2;
  }
};

}  // namespace

Splits::Splits(const Problem& problem, std::int64_t max_splits)
    : batch_size_(problem.batch_size),
      num_heads_(problem.num_heads_q),
      seqlen_q_(problem.seqlen_q),
      head_dim_v_(problem.head_dim_v),
      max_splits_(max_splits) {}

std::size_t Splits::workspace_size() const noexcept {
  return static_cast<std::size_t>(batch_size_ * num_heads_ * seqlen_q_ * max_splits_ * (head_dim_v_ + 2)) *
         sizeof(float);
}

float* Splits::row(void* workspace, std::int64_t batch, std::int64_t head, std::int64_t query,
                   std::int64_t split) const {
  const std::int64_t index = ((batch * num_heads_ + head) * seqlen_q_ + query) * max_splits_ + split;
  return static_cast<float*>(workspace) + index * (head_dim_v_ + 2);
}

void Splits::merge(const device::AttentionParams& p, const ScoreParams& score, ElementIndex element, void* workspace,
                   int workers) const {
  const float dropout_scale = score.dropout_threshold ? score.dropout_scale : 1.0f;
  core::parallel_for(batch_size_ * num_heads_, workers, [&](std::int64_t task, int) {
    const std::int64_t batch = task / num_heads_, head = task % num_heads_;
    const device::Sequence s = device::sequence_of(p, batch);
    const float* sink = p.sink ? p.sink + head * p.sink_stride : nullptr;
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
      const Merged merged(row(workspace, batch, head, i, 0), max_splits_, head_dim_v_, sink, dropout_scale);
      void* out = mutable_row_address(p.out, batch, s.q_row + i, head, element_size(element));
      for (std::int64_t d = 0; d < head_dim_v_; ++d) store(element, merged.out[static_cast<std::size_t>(d)], out, d);
      if (float* lse = lse_address(p.softmax_lse, s, batch, i, head)) *lse = merged.lse;
    }
  });
}

}  // namespace tilewise::backends::cpu
