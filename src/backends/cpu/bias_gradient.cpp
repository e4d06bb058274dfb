// dbias and dsink on the CPU; see bias_gradient.hpp.
#include "backends/cpu/bias_gradient.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "backends/cpu/flush_denormals.hpp"
#include "backends/cpu/gradient_rows.hpp"
#include "core/ceil_div.hpp"
#include "core/parallel.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::cpu {
namespace {

using core::ceil_div;

/// Writes dbias patch by patch.
class DbiasPass {
 public:
  DbiasPass(const device::AttentionParams& p, const ScoreParams& score, const KernelSet& kernels, ElementIndex element,
            std::size_t kernel_scratch)
      : p_(p), score_(score), kernels_(kernels), element_(element), kernel_scratch_(kernel_scratch) {
    const auto blocks = [](std::int64_t size, std::int64_t step) { return size > 1 ? ceil_div(size, step) : size; };
    patches_ = {p.dbias_shape[0], p.dbias_shape[1], blocks(p.dbias_shape[2], kernels.backward_rows),
                blocks(p.dbias_shape[3], kernels.backward_keys)};
  }

  [[nodiscard]] std::int64_t size() const { return patches_[0] * patches_[1] * patches_[2] * patches_[3]; }

  void run(std::int64_t task) const {
    Patch patch = patch_of(task);
    for (std::int64_t b = patch.batch_begin; b < patch.batch_end; ++b)
      for (std::int64_t h = patch.head_begin; h < patch.head_end; ++h) add_sequence(patch, b, h);
    store(patch);
  }

 private:
  /// A patch of dbias and what reaches it. Sums have a margin of one key block on both sides,
  /// since a sequence's key blocks need not start where the patch does (left padding).
  struct Patch {
    std::int64_t batch_begin, batch_end, head_begin, head_end;
    std::int64_t row_begin, row_end, column_begin, column_end;  // of dbias; [0, 1) where broadcast
    bool all_queries, all_keys;
    std::byte* scratch;
    double *lse, *delta;
    void* sums;  // Reals
    std::int64_t stride;
  };

  [[nodiscard]] Patch patch_of(std::int64_t task) const {
    const std::int64_t key = task % patches_[3], query = task / patches_[3] % patches_[2];
    const std::int64_t head = task / patches_[3] / patches_[2] % patches_[1];
    const std::int64_t batch = task / patches_[3] / patches_[2] / patches_[1];
    const auto range = [](std::int64_t index, std::int64_t size, std::int64_t all, std::int64_t& begin,
                          std::int64_t& end) {
      begin = size > 1 ? index : 0;
      end = size > 1 ? index + 1 : all;
    };
    Patch patch{};
    range(batch, p_.dbias_shape[0], p_.batch_size, patch.batch_begin, patch.batch_end);
    range(head, p_.dbias_shape[1], p_.num_heads_q, patch.head_begin, patch.head_end);
    patch.all_queries = p_.dbias_shape[2] <= 1;
    patch.all_keys = p_.dbias_shape[3] <= 1;
    patch.row_begin = query * kernels_.backward_rows;
    patch.row_end = std::min(p_.dbias_shape[2], patch.row_begin + kernels_.backward_rows);
    patch.column_begin = key * kernels_.backward_keys;
    patch.column_end = std::min(p_.dbias_shape[3], patch.column_begin + kernels_.backward_keys);
    patch.stride = patch.all_keys ? 1 : 3 * std::int64_t{kernels_.backward_keys};
    const std::int64_t sums = (patch.row_end - patch.row_begin) * patch.stride;
    const std::size_t sum_bytes = static_cast<std::size_t>(sums) * real_size(element_);
    constexpr std::size_t kRowBytes = 2 * kMaxBackwardRows * sizeof(double);
    patch.scratch = static_cast<std::byte*>(thread_scratch(kernel_scratch_ + kRowBytes + sum_bytes));
    patch.lse = reinterpret_cast<double*>(patch.scratch + kernel_scratch_);
    patch.delta = patch.lse + kMaxBackwardRows;
    patch.sums = patch.delta + kMaxBackwardRows;
    std::memset(patch.sums, 0, sum_bytes);
    return patch;
  }

  void add_sequence(const Patch& patch, std::int64_t batch, std::int64_t head) const {
    const device::Sequence s = device::sequence_of(p_, batch);
    const GradientRows rows(p_, kernels_, element_, batch, s);
    const std::int64_t head_k = head / (p_.num_heads_q / p_.num_heads_k);
    const std::int64_t step = kernels_.backward_keys;
    DbiasSums sums;
    sums.key_begin = patch.all_keys ? 0 : std::max<std::int64_t>(0, patch.column_begin - s.leftpad);
    sums.key_end = patch.all_keys ? s.seqlen_k : std::min(s.seqlen_k, patch.column_end - s.leftpad);
    sums.query_stride = patch.all_queries ? 0 : patch.stride;
    sums.key_stride = patch.all_keys ? 0 : 1;
    const std::int64_t last_query = patch.all_queries ? s.seqlen_q : std::min(s.seqlen_q, patch.row_end);
    for (std::int64_t key = sums.key_begin / step * step; key < sums.key_end; key += step) {
      KeyBlock block = rows.key_block(score_, head_k, key, std::min(step, s.seqlen_k - key));
      block.wants_dk = block.wants_dv = false;
      kernels_.begin_keys[element_](block, patch.scratch);
      sums.first =
          advance(patch.sums, patch.all_keys ? 0 : key + s.leftpad - patch.column_begin + step, real_size(element_));
      for (std::int64_t i = patch.row_begin; i < last_query; i += kernels_.backward_rows) {
        if (core::abandoned()) return;
        const std::int64_t count = std::min<std::int64_t>(kernels_.backward_rows, last_query - i);
        rows.statistics(head, i, count, patch.lse, patch.delta);
        rows.add_block(block, head, i, count, patch.lse, patch.delta, nullptr, 0, sums, patch.scratch);
      }
    }
  }

  void store(const Patch& patch) const {
    const DType real = real_of(element_), dtype = operations::dtype_of(p_.bias_type);
    for (std::int64_t i = patch.row_begin; i < patch.row_end; ++i) {
      std::int64_t from = (i - patch.row_begin) * patch.stride + (patch.all_keys ? 0 : kernels_.backward_keys);
      for (std::int64_t j = patch.column_begin; j < patch.column_end; ++j, ++from) {
        const std::int64_t at = patch.batch_begin * p_.dbias.batch_stride + patch.head_begin * p_.dbias.head_stride +
                                i * p_.dbias.query_stride + j * p_.dbias.key_stride;
        operations::store_element(dtype, p_.dbias.data, at, operations::load_element(real, patch.sums, from));
      }
    }
  }

  const device::AttentionParams& p_;
  const ScoreParams& score_;
  const KernelSet& kernels_;
  ElementIndex element_;
  std::size_t kernel_scratch_;
  std::array<std::int64_t, 4> patches_;
};

}  // namespace

void accumulate_dbias(const device::AttentionParams& p, const ScoreParams& score, const KernelSet& kernels,
                      ElementIndex element, std::size_t kernel_scratch, int workers) {
  const DbiasPass pass(p, score, kernels, element, kernel_scratch);
  core::parallel_for(pass.size(), workers, [&](std::int64_t task, int) {
    const FlushDenormals flush;
    pass.run(task);
  });
}

void accumulate_dsink(const device::AttentionParams& p, const KernelSet& kernels, ElementIndex element, int workers) {
  core::parallel_for(p.num_heads_q, workers, [&](std::int64_t head, int) {
    const double sink = sink_of(p, head);
    double sum = 0.0;
    for (std::int64_t b = 0; b < p.batch_size; ++b) {
      const device::Sequence s = device::sequence_of(p, b);
      const GradientRows rows(p, kernels, element, b, s);
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        if (i % kRowsBetweenQuestions == 0 && core::abandoned()) return;
        double unless_blind = 0.0, delta = 0.0;
        rows.statistics(head, i, 1, &unless_blind, &delta);
        const double lse =
            operations::load_element(real_of(element), lse_address(p.softmax_lse, s, b, i, head, element), 0);
        if (std::isinf(lse) && lse < 0.0) continue;
        sum -= std::exp(sink - lse) * delta;
      }
    }
    operations::store_element(operations::dtype_of(p.dsink.type), p.dsink.data, head * p.dsink.stride, sum);
  });
}

}  // namespace tilewise::backends::cpu
