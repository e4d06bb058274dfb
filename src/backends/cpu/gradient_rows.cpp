// One sequence of the backward pass; see gradient_rows.hpp.
#include "backends/cpu/gradient_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "backends/cpu/score_functions.hpp"
#include "core/parallel.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::cpu {

using device::Visibility, operations::attention::ScoreBlock, operations::attention::ScoreBlocks;

void GradientRows::statistics(std::int64_t head, std::int64_t first, std::int64_t count, double* lse,
                              double* delta) const {
  const std::size_t size = element_size(element_);
  const DType real = real_of(element_);
  for (std::int64_t i = 0; i < count; ++i) {
    if (i % kRowsBetweenQuestions == 0 && core::abandoned()) return;
    const std::int64_t row = sequence_.q_row + first + i;
    const void* address = lse_address(p_.softmax_lse, sequence_, batch_, first + i, head, element_);
    lse[i] = operations::load_element(real, address, 0);
    if (std::isinf(lse[i]) && lse[i] < 0.0) lse[i] = std::numeric_limits<double>::infinity();
    delta[i] = kernels_.dot[element_](row_address(p_.out, batch_, row, head, size),
                                      row_address(p_.dout, batch_, row, head, size), p_.head_dim_v);
    if (const void* dlse = lse_address(p_.dlse, sequence_, batch_, first + i, head, element_))
      delta[i] -= operations::load_element(real, dlse, 0);
  }
}

KeyBlock GradientRows::key_block(const ScoreParams& score, std::int64_t head_k, std::int64_t key,
                                 std::int64_t num_keys) const {
  const std::size_t size = element_size(element_);
  KeyBlock block{};
  block.k = row_address(p_.k, batch_, sequence_.k_row + key, head_k, size);
  block.v = row_address(p_.v, batch_, sequence_.k_row + key, head_k, size);
  block.k_stride = p_.k.seq_stride;
  block.v_stride = p_.v.seq_stride;
  block.first_key = static_cast<std::int32_t>(key);
  block.num_keys = static_cast<std::int32_t>(num_keys);
  block.head_dim = static_cast<std::int32_t>(p_.head_dim);
  block.head_dim_v = static_cast<std::int32_t>(p_.head_dim_v);
  block.score = score;
  block.score.functions.memory = function_memory(score.functions);
  block.wants_dk = p_.dk.data != nullptr;
  block.wants_dv = p_.dv.data != nullptr;
  return block;
}

void GradientRows::add_queries(const KeyBlock& block, std::int64_t head, const double* lse, const double* delta,
                               void* dq, std::int64_t dq_stride, void* scratch) const {
  for (std::int64_t first = 0; first < sequence_.seqlen_q; first += kernels_.backward_rows) {
    if (core::abandoned()) return;
    const std::int64_t count = std::min<std::int64_t>(kernels_.backward_rows, sequence_.seqlen_q - first);
    add_block(block, head, first, count, lse + first, delta + first,
              dq ? advance(dq, first * dq_stride, real_size(element_)) : nullptr, dq_stride, DbiasSums{}, scratch);
  }
}

bool GradientRows::add_block(const KeyBlock& block, std::int64_t head, std::int64_t first, std::int64_t count,
                             const double* lse, const double* delta, void* dq, std::int64_t dq_stride,
                             const DbiasSums& dbias, void* scratch) const {
  // A row's range of keys moves with the row, so the first and the last one bound the block's.
  const std::int64_t d = device::diagonal_offset(p_, sequence_);
  if (device::visible_keys(p_, sequence_, d, first + count - 1).end <= block.first_key ||
      device::visible_keys(p_, sequence_, d, first).begin >= block.first_key + block.num_keys)
    return false;
  const ScoreBlocks* functions = block.score.functions.blocks;
  const ScoreBlock keys{
      batch_, head, head + 1, first, first + count, block.first_key, block.first_key + block.num_keys};
  const Visibility visible = functions == nullptr ? Visibility::some : functions->of(keys);
  if (visible == Visibility::none) return false;
  const std::size_t size = element_size(element_);
  std::array<RowInfo, kMaxBackwardRows> rows;
  for (std::int64_t i = 0; i < count; ++i) {
    RowInfo& row = rows[static_cast<std::size_t>(i)];
    row = maker_.row(first + i, head);
    row.softmax_lse = lse[i];
    row.delta = delta[i];
    if (!dbias.first) continue;
    row.dbias = advance(dbias.first, i * dbias.query_stride, real_size(element_));
    row.key_begin = std::max(row.key_begin, static_cast<std::int32_t>(dbias.key_begin));
    row.key_end = std::min(row.key_end, static_cast<std::int32_t>(dbias.key_end));
  }
  if (visible == Visibility::some && functions != nullptr) {
    narrow_rows(*functions, keys, rows.data(), count);
  }
  QueryBlock queries{};
  queries.rows = rows.data();
  queries.num_rows = static_cast<std::int32_t>(count);
  queries.q = row_address(p_.q, batch_, sequence_.q_row + first, head, size);
  queries.dout = row_address(p_.dout, batch_, sequence_.q_row + first, head, size);
  queries.q_stride = p_.q.seq_stride;
  queries.dout_stride = p_.dout.seq_stride;
  queries.dq = dq;
  queries.dq_stride = dq_stride;
  queries.dbias_key_stride = dbias.key_stride;
  queries.all_visible = visible == Visibility::all;
  kernels_.add_queries[element_](block, queries, scratch);
  return true;
}

void GradientRows::finish_keys(const KeyBlock& block, std::int64_t head_k, std::int64_t key, void* scratch) const {
  const std::size_t size = element_size(element_);
  const std::int64_t row = sequence_.k_row + key;
  kernels_.end_keys[element_](
      block, p_.dk.data ? mutable_row_address(p_.dk, batch_, row, head_k, size) : nullptr, p_.dk.seq_stride,
      p_.dv.data ? mutable_row_address(p_.dv, batch_, row, head_k, size) : nullptr, p_.dv.seq_stride, scratch);
}

void GradientRows::store_dq(const void* sums, std::int64_t query, std::int64_t head, double softmax_scale) const {
  // Hidden keys of NaN, times 0, don't reach a row that sees nothing.
  const void* lse = lse_address(p_.softmax_lse, sequence_, batch_, query, head, element_);
  if (operations::load_element(real_of(element_), lse, 0) == -std::numeric_limits<double>::infinity())
    return clear_row(p_.dq, sequence_.q_row + query, head, p_.head_dim);
  kernels_.store_scaled[element_](
      sums, p_.head_dim, softmax_scale,
      mutable_row_address(p_.dq, batch_, sequence_.q_row + query, head, element_size(element_)));
}

void GradientRows::clear_unused(std::int64_t head_k, std::int64_t group) const {
  for (std::int64_t row = sequence_.seqlen_q; row < sequence_.all_q; ++row)
    for (std::int64_t h = 0; h < group; ++h) clear_row(p_.dq, sequence_.q_row + row, head_k * group + h, p_.head_dim);
  const std::int64_t first = sequence_.k_row - sequence_.leftpad;
  for (std::int64_t row = 0; row < sequence_.all_k; ++row) {
    if (row >= sequence_.leftpad && row < sequence_.leftpad + sequence_.seqlen_k) continue;
    clear_row(p_.dk, first + row, head_k, p_.head_dim);
    clear_row(p_.dv, first + row, head_k, p_.head_dim_v);
  }
}

void GradientRows::clear_row(const device::Tensor4& t, std::int64_t row, std::int64_t head, std::int64_t size) const {
  if (!t.data) return;
  const std::size_t element = element_size(element_);
  std::memset(mutable_row_address(t, batch_, row, head, element), 0, static_cast<std::size_t>(size) * element);
}

}  // namespace tilewise::backends::cpu
