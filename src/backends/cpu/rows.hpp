// What the forward and backward kernels of this backend share on the host side: score
// parameters, per-row descriptions, scratch, and how many workers a call deserves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels.hpp"
#include "device/common/mask.h"
#include "device/common/params.h"
#include "operations/attention/rules.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::cpu {

/// Position of a dtype in a KernelSet's arrays, and its size in bytes.
[[nodiscard]] ElementIndex element_of(DType dtype);
[[nodiscard]] DType dtype_of(ElementIndex element);
[[nodiscard]] std::size_t element_size(ElementIndex element);

/// What the kernels of an element type compute in (kernels.hpp's Real), and its size in bytes.
[[nodiscard]] DType real_of(ElementIndex element);
[[nodiscard]] std::size_t real_size(ElementIndex element);

/// `count` numbers of `size` bytes further.
[[nodiscard]] inline void* advance(void* from, std::int64_t count, std::size_t size) {
  return static_cast<std::byte*>(from) + count * static_cast<std::int64_t>(size);
}

/// Query heads a key head, at least 1.
[[nodiscard]] std::int64_t group_of(const Problem& problem);

/// Query heads of a group that a tile may hold: they have one factor between product and score.
[[nodiscard]] inline std::int64_t heads_that_share_a_tile(const Problem& problem) {
  return problem.q_scale == ScaleKind::head ? 1 : group_of(problem);
}

/// Multiply-adds of the forward pass without a mask, times 2.
[[nodiscard]] double forward_flops(const Problem& problem);

[[nodiscard]] ScoreParams make_score_params(const device::AttendedRows& p, const device::ScoreFactors& factors);

/// -infinity where there is none.
[[nodiscard]] double sink_of(const device::AttendedRows& p, std::int64_t head);

/// Address of row `row` (in memory rows) of head `head`.
[[nodiscard]] inline const void* row_address(const device::Tensor4& t, std::int64_t batch, std::int64_t row,
                                             std::int64_t head, std::size_t element) {
  const std::int64_t offset = batch * t.batch_stride + row * t.seq_stride + head * t.head_stride;
  return static_cast<const std::byte*>(t.data) + offset * static_cast<std::int64_t>(element);
}
[[nodiscard]] inline void* mutable_row_address(const device::Tensor4& t, std::int64_t batch, std::int64_t row,
                                               std::int64_t head, std::size_t element) {
  return const_cast<void*>(row_address(t, batch, row, head, element));
}

/// Where the forward pass writes (and the backward pass reads) the lse of used query i; null
/// where softmax_lse is not given.
[[nodiscard]] void* lse_address(const device::LseTensor& t, const device::Sequence& sequence, std::int64_t batch,
                                std::int64_t i, std::int64_t head, ElementIndex element);

/// The part of a call that one (batch, head) shares: filled once, then asked for each query.
class RowMaker {
 public:
  RowMaker(const device::AttendedRows& p, ElementIndex element, std::int64_t batch, const device::Sequence& sequence)
      : p_(p), element_(element), batch_(batch), sequence_(sequence), diagonal_(device::diagonal_offset(p, sequence)) {}

  /// q, bias, ALiBi, sink, visible keys and dropout coordinates of query i (of the used part).
  [[nodiscard]] RowInfo row(std::int64_t i, std::int64_t head) const;

 private:
  const device::AttendedRows& p_;
  ElementIndex element_;
  std::int64_t batch_;
  device::Sequence sequence_;
  std::int64_t diagonal_;
};

enum class ThreadMemory : std::uint8_t { scratch, functions, blocks, places, gathered, count_ };

/// At least `bytes` of 64-byte aligned memory of the calling thread, kept for its next task.
/// Throws Error(runtime) where the system has no more.
[[nodiscard]] void* thread_memory(ThreadMemory use, std::size_t bytes);
[[nodiscard]] inline void* thread_scratch(std::size_t bytes) { return thread_memory(ThreadMemory::scratch, bytes); }

/// Workers for `flops` of work: waking one costs about as much as 50 µs of arithmetic on one core.
[[nodiscard]] int workers_for(double flops);

}  // namespace tilewise::backends::cpu
