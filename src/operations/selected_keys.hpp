// key_indices: which keys each query attends to. Of every operation whose problem has top_k and key_indices_per_head.
#pragma once

#include <cstdint>
#include <limits>

#include "core/message.hpp"
#include "core/tensor_checks.hpp"
#include "device/common/tensors.h"
#include "operations/schema.hpp"

namespace tilewise::operations {

/// Heads that key_indices have.
template <typename Problem>
[[nodiscard]] constexpr std::int64_t index_heads(const Problem& p) {
  return p.key_indices_per_head ? p.num_heads_k : 1;
}

template <typename Problem>
inline constexpr schema::Dimension<Problem> kIndexHeads{
    .name = "1 or num_heads_k", .index = "head", .follows = [](const Problem& p) { return index_heads(p); }};
template <typename Problem>
inline constexpr schema::Dimension<Problem> kTopK{
    .name = "top_k", .size = &Problem::top_k, .least = 1, .most = schema::kMostInt32, .index = "index"};

/// The tensor, of the sequences and queries that a schema names.
template <const auto& kBatch, const auto& kQueries, typename Problem>
[[nodiscard]] constexpr schema::Tensor<Problem> key_indices() {
  return {.name = "key_indices",
          .optional = true,
          .rows = true,
          .moved = [](const Problem&) { return false; },
          .dimensions = {schema::Dimensions<Problem>::Order::written,
                         {&kBatch, &kQueries, &kIndexHeads<Problem>, &kTopK<Problem>}},
          .types = {schema::kFixed<Problem, DType::i32>},
          .needed = [](const Problem& p) { return p.top_k > 0; },
          .needed_by = "top_k",
          .look =
              [](Problem& p, const TensorView& view) {
                p.top_k = 1;  // until the last dimension says how many
                p.key_indices_per_head =
                    view.rank >= 2 && p.num_heads_k != 1 && core::size_at(view, view.rank - 2) == p.num_heads_k;
              },
          .summary = "int32 [batch_size, seqlen_q, 1 or num_heads_k, top_k]: the only keys that are seen; -1: none"};
}

/// Throws Error where the fields are no good.
template <typename Problem>
void validate_selected_keys(const Problem& p, std::int64_t rows) {
  if (p.top_k < 0 || p.top_k > schema::kMostInt32) {
    core::invalid_argument("key_indices: top_k must be 0 (none) to ", schema::kMostInt32, " (got ", p.top_k, ")");
  }
  if (p.top_k == 0 && p.key_indices_per_head) {
    core::invalid_argument("key_indices_per_head: requires key_indices, top_k >= 1 (got 0)");
  }
  std::int64_t bytes = 4;
  bool overflow = rows > 0 && __builtin_mul_overflow(bytes, rows, &bytes);
  overflow |= rows > 0 && __builtin_mul_overflow(bytes, index_heads(p), &bytes);
  overflow |= rows > 0 && __builtin_mul_overflow(bytes, p.top_k, &bytes);
  if (overflow) {
    core::invalid_argument("key_indices: must have less than 2^63 bytes (got ", rows, " * ", index_heads(p), " * ",
                           p.top_k, " elements of 4 bytes)");
  }
}

/// One key head has the indices of all.
template <typename Problem>
void normalise_selected_keys(Problem& p) {
  p.key_indices_per_head &= p.num_heads_k != 1;
}

/// As kernels see them.
[[nodiscard]] device::IndexTensor index_tensor(const TensorView& view, bool packed);

/// Throws Error for an index of queries [first, first + count), rows in memory, that is neither -1 nor below seqlen_k.
void check_key_indices(const device::IndexTensor& indices, std::int64_t heads, std::int64_t batch, std::int64_t first,
                       std::int64_t count, std::int64_t seqlen_k);

}  // namespace tilewise::operations
