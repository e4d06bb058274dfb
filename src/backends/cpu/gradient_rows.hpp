// One sequence of the backward pass as its kernels see it: key blocks, query blocks, the rows'
// statistics, and where gradients are stored.
#pragma once

#include <cstdint>

#include "backends/cpu/kernels.hpp"
#include "backends/cpu/rows.hpp"

namespace tilewise::backends::cpu {

inline constexpr std::int64_t kMaxBackwardRows = 256;       // no KernelSet takes larger query blocks
inline constexpr std::int64_t kRowsBetweenQuestions = 256;  // whether a job is abandoned, where rows cost little

/// Where dbias accumulates while a block is visited; see bias_gradient.hpp.
struct DbiasSums {
  void* first = nullptr;  // Reals; at the block's first query and first key
  std::int64_t query_stride = 0, key_stride = 0;
  std::int64_t key_begin = 0, key_end = 0;  // keys that count
};

class GradientRows {
 public:
  GradientRows(const device::AttentionParams& p, const KernelSet& kernels, ElementIndex element, std::int64_t batch,
               const device::Sequence& sequence)
      : p_(p),
        kernels_(kernels),
        element_(element),
        batch_(batch),
        sequence_(sequence),
        maker_(p, element, batch, sequence) {}

  /// lse (log2 units, +infinity where nothing is seen) and rowsum(out * dout) - dlse of queries
  /// [first, first + count) of a head.
  void statistics(std::int64_t head, std::int64_t first, std::int64_t count, double* lse, double* delta) const;

  [[nodiscard]] KeyBlock key_block(const ScoreParams& score, std::int64_t head_k, std::int64_t key,
                                   std::int64_t num_keys) const;

  /// Passes the queries of a head that see the block, a query block at a time. `dq`, Reals, may be null.
  void add_queries(const KeyBlock& block, std::int64_t head, const double* lse, const double* delta, void* dq,
                   std::int64_t dq_stride, void* scratch) const;

  /// One query block, queries [first, first + count). False where none of it sees the keys.
  bool add_block(const KeyBlock& block, std::int64_t head, std::int64_t first, std::int64_t count, const double* lse,
                 const double* delta, void* dq, std::int64_t dq_stride, const DbiasSums& dbias, void* scratch) const;

  void finish_keys(const KeyBlock& block, std::int64_t head_k, std::int64_t key, void* scratch) const;
  void store_dq(const void* sums, std::int64_t query, std::int64_t head, double softmax_scale) const;

  /// Zeroes dq, dk and dv of the sequence's rows outside its used part.
  void clear_unused(std::int64_t head_k, std::int64_t group) const;

 private:
  void clear_row(const device::Tensor4& t, std::int64_t row, std::int64_t head, std::int64_t size) const;

  const device::AttentionParams& p_;
  const KernelSet& kernels_;
  ElementIndex element_;
  std::int64_t batch_;
  device::Sequence sequence_;
  RowMaker maker_;
};

}  // namespace tilewise::backends::cpu
