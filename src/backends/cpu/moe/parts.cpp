// Counting tokens of experts, and placing them.
#include "backends/cpu/moe/parts.hpp"

#include <algorithm>

#include "backends/cpu/gemm/elements.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::cpu {

using operations::moe::MoeParams;

namespace {

/// Of (token, j), counted through.
std::int64_t expert_of(const MoeParams& p, std::int64_t i) {
  const std::int64_t top_k = p.topk_ids.columns;
  const std::int64_t at = i / top_k * p.topk_ids.row_stride + i % top_k * p.topk_ids.column_stride;
  const std::int64_t id = operations::load_integer(p.topk_ids.dtype, p.topk_ids.data, at);
  return id >= p.first_expert && id - p.first_expert < p.gate_up.num_experts ? id - p.first_expert : kNowhere;
}

}  // namespace

Parts::Parts(Carver& carver, std::int64_t parts, std::int64_t experts, DType real)
    : groups(carver.integers(experts + 1)),
      token(carver.integers(parts)),
      place(carver.integers(parts)),
      factor(carver.take(parts, size_of(real))) {}

void sort_parts(const MoeParams& p, std::int64_t first, std::int64_t count, const Parts& w) {
  const std::int64_t experts = p.gate_up.num_experts, top_k = p.topk_ids.columns;
  const DType real = sum_dtype(p.x.dtype);
  std::fill_n(w.groups, experts + 1, std::int64_t{0});
  for (std::int64_t i = 0; i < count * top_k; ++i) {
    if (const std::int64_t expert = w.place[i] = expert_of(p, first * top_k + i); expert != kNowhere)
      ++w.groups[expert + 1];
  }
  for (std::int64_t e = 0; e < experts; ++e) w.groups[e + 1] += w.groups[e];
  // Each group's first part counts up to the next one's while parts are placed, and is set back afterwards.
  for (std::int64_t i = 0; i < count * top_k; ++i) {
    if (w.place[i] == kNowhere) continue;
    const std::int64_t part = w.groups[w.place[i]]++, t = first + i / top_k;
    w.place[i] = part;
    w.token[part] = t;
    const std::int64_t at = t * p.topk_weights.row_stride + i % top_k * p.topk_weights.column_stride;
    operations::store_element(real, w.factor, part,
                              operations::load_element(p.topk_weights.dtype, p.topk_weights.data, at));
  }
  std::copy_backward(w.groups, w.groups + experts, w.groups + experts + 1);
  w.groups[0] = 0;
}

void count_parts(const MoeParams& p, std::int64_t* groups) {
  std::fill_n(groups, p.gate_up.num_experts + 1, std::int64_t{0});
  for (std::int64_t i = 0; i < p.x.rows * p.topk_ids.columns; ++i)
    if (const std::int64_t expert = expert_of(p, i); expert != kNowhere) ++groups[expert + 1];
  for (std::int64_t e = 0; e < p.gate_up.num_experts; ++e) groups[e + 1] += groups[e];
}

std::int64_t expert_of_part(const Parts& parts, std::int64_t experts, std::int64_t part) {
  return std::upper_bound(parts.groups, parts.groups + experts + 1, part) - parts.groups - 1;
}

}  // namespace tilewise::backends::cpu
