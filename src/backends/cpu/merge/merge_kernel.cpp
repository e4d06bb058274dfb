// Blocks of rows are the tasks. What a block adds to the sink's gradient waits in the workspace, so that the sum is
// the same for any number of threads.
#include "backends/cpu/merge/merge_kernel.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "backends/cpu/merge/merge_rows.hpp"
#include "backends/cpu/rows.hpp"
#include "core/message.hpp"
#include "core/parallel.hpp"
#include "operations/elements.hpp"
#include "operations/merge/merge.hpp"

namespace tilewise::backends::cpu {
namespace {

using operations::merge::MergeParams, operations::merge::Part;

constexpr std::int64_t kBlockHeads = 16, kBlockQueries = 4;

/// Blocks of [batch, query, head].
struct Blocks {
  std::int64_t batch_size, seqlen_q, num_heads, query_blocks, head_blocks;

  explicit Blocks(const MergeProblem& p)
      : batch_size(p.batch_size),
        seqlen_q(p.seqlen_q),
        num_heads(p.num_heads_q),
        query_blocks((p.seqlen_q + kBlockQueries - 1) / kBlockQueries),
        head_blocks((p.num_heads_q + kBlockHeads - 1) / kBlockHeads) {}

  [[nodiscard]] std::int64_t count() const { return rows_of_sums() * head_blocks; }
  /// Blocks that hold a given head.
  [[nodiscard]] std::int64_t rows_of_sums() const { return batch_size * query_blocks; }

  /// Calls visit(b, s, h, row), row counting the block's.
  template <typename Visit>
  void for_each_row(std::int64_t block, Visit&& visit) const {
    const std::int64_t first_head = block % head_blocks * kBlockHeads;
    const std::int64_t b = block / head_blocks / query_blocks;
    const std::int64_t first_query = block / head_blocks % query_blocks * kBlockQueries;
    const std::int64_t last_head = std::min(first_head + kBlockHeads, num_heads);
    for (std::int64_t s = first_query; s < std::min(first_query + kBlockQueries, seqlen_q); ++s) {
      for (std::int64_t h = first_head; h < last_head; ++h) visit(b, s, h);
    }
  }
};

void* row_at(const device::Tensor4& t, DType dtype, std::int64_t b, std::int64_t s, std::int64_t h) {
  const std::int64_t offset = b * t.batch_stride + s * t.seq_stride + h * t.head_stride;
  return static_cast<std::byte*>(t.data) + offset * static_cast<std::int64_t>(size_of(dtype));
}

/// A log-sum-exp of f32, or f64 where out is.
template <typename Real>
Real& lse_at(const device::LseTensor& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  return reinterpret_cast<Real*>(t.data)[b * t.batch_stride + h * t.head_stride + s * t.seq_stride];
}

/// One task's row: weights of the parts, and the log-sum-exp of all.
template <typename Real>
class RowWeights {
 public:
  explicit RowWeights(const MergeParams& p) : p_(p), parts_(p.parts.size()) {}

  void read(std::int64_t b, std::int64_t s, std::int64_t h) {
    const Real own = p_.sink == nullptr
                         ? -kInfinity
                         : static_cast<Real>(operations::load_element(p_.sink_dtype, p_.sink, h * p_.sink_stride));
    Real largest = own;  // of those that are numbers; a NaN reaches `total` and stays
    any_seen_ = false;
    for (std::size_t n = 0; n < parts_.size(); ++n) {
      const Real lse = parts_[n] = lse_at<Real>(p_.parts[n].lse, b, s, h);
      any_seen_ = any_seen_ || lse != -kInfinity;
      largest = std::max(largest, lse);
    }
    sink_ = own == -kInfinity ? Real{0} : std::exp(own - largest);
    lse_ = own;
    if (!any_seen_) {  // the sink is all there is, whatever number it is
      std::ranges::fill(parts_, kUnseen);
      return;
    }
    Real total = sink_;
    for (Real& part : parts_) {
      part = part == -kInfinity ? kUnseen : std::exp(part - largest);
      if (part != kUnseen) total += part;
    }
    lse_ = largest + std::log(total);
    sink_ = flushed(sink_ / total);
    for (Real& part : parts_) {
      if (part != kUnseen) part = flushed(part / total);
    }
  }

  [[nodiscard]] bool any_seen() const { return any_seen_; }
  [[nodiscard]] bool seen(std::size_t n) const { return parts_[n] != kUnseen; }
  [[nodiscard]] Real part(std::size_t n) const { return parts_[n]; }
  [[nodiscard]] Real sink() const { return sink_; }
  [[nodiscard]] Real lse() const { return lse_; }

 private:
  static constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  static constexpr Real kUnseen = -1;  // a weight is 0 to 1, or NaN
  /// Denormals would take tens of times as long.
  static Real flushed(Real weight) { return weight < std::numeric_limits<Real>::min() ? Real{0} : weight; }
  const MergeParams& p_;
  std::vector<Real> parts_;
  Real sink_ = 0, lse_ = 0;
  bool any_seen_ = false;
};

template <typename Real>
using RowValues = std::array<Real, static_cast<std::size_t>(operations::merge::kMaxHeadDimV)>;

template <typename Real>
class Forward {
 public:
  explicit Forward(const MergeParams& p) : p_(p), weights_(p) {}

  void row(std::int64_t b, std::int64_t s, std::int64_t h) {
    weights_.read(b, s, h);
    void* out = row_at(p_.out, p_.dtype, b, s, h);
    if (weights_.any_seen()) {
      std::fill_n(sum_.begin(), p_.head_dim_v, Real{0});
      for (std::size_t n = 0; n < p_.parts.size(); ++n) {
        const Part& part = p_.parts[n];
        if (!weights_.seen(n)) continue;
        add_weighted(sum_.data(), row_at(part.out, part.dtype, b, s, h), part.dtype, p_.head_dim_v, weights_.part(n));
      }
      store_weighted(out, p_.dtype, sum_.data(), p_.head_dim_v, Real{1});
    } else {
      clear_row(out, p_.dtype, p_.head_dim_v);
    }
    if (p_.softmax_lse.data != nullptr) lse_at<Real>(p_.softmax_lse, b, s, h) = weights_.lse();
  }

 private:
  const MergeParams& p_;
  RowWeights<Real> weights_;
  RowValues<Real> sum_;
};

template <typename Real>
class Backward {
 public:
  explicit Backward(const MergeParams& p) : p_(p), weights_(p), dots_(p.parts.size()) {}

  /// Returns what the row adds to the sink's gradient.
  Real row(std::int64_t b, std::int64_t s, std::int64_t h) {
    weights_.read(b, s, h);
    const Real dlse = p_.dlse.data == nullptr ? Real{0} : lse_at<Real>(p_.dlse, b, s, h);
    load_row(dout_.data(), row_at(p_.dout, p_.dtype, b, s, h), p_.dtype, p_.head_dim_v);
    Real delta = 0;
    for (std::size_t n = 0; n < p_.parts.size(); ++n) {
      const Part& part = p_.parts[n];
      if (!weights_.seen(n)) continue;
      dots_[n] = dot(dout_.data(), row_at(part.out, part.dtype, b, s, h), part.dtype, p_.head_dim_v);
      delta += weights_.part(n) * dots_[n];
    }
    for (std::size_t n = 0; n < p_.parts.size(); ++n) {
      const Part& part = p_.parts[n];
      const bool seen = weights_.seen(n);
      if (part.dlse.data != nullptr)
        lse_at<Real>(part.dlse, b, s, h) = seen ? weights_.part(n) * (dots_[n] - delta + dlse) : Real{0};
      if (part.dout.data == nullptr) continue;
      void* to = row_at(part.dout, part.dtype, b, s, h);
      seen ? store_weighted(to, part.dtype, dout_.data(), p_.head_dim_v, weights_.part(n))
           : clear_row(to, part.dtype, p_.head_dim_v);
    }
    return weights_.sink() * (dlse - delta);
  }

 private:
  const MergeParams& p_;
  RowWeights<Real> weights_;
  std::vector<Real> dots_;
  RowValues<Real> dout_;
};

template <typename Real>
class MergeKernel final : public operations::merge::Kernel {
 public:
  explicit MergeKernel(const MergeProblem& problem)
      : blocks_(problem),
        backward_(problem.pass == MergePass::merge_backward),
        dsink_(problem.dsink),
        work_(4.0 * operations::merge::bytes_moved(problem)) {}

  [[nodiscard]] std::size_t workspace_size() const noexcept override {
    return dsink_ ? static_cast<std::size_t>(blocks_.rows_of_sums() * blocks_.num_heads) * sizeof(double) : 0;
  }
  [[nodiscard]] std::string schedule() const override {
    return core::concat("blocks of ", kBlockQueries, " queries and ", kBlockHeads, " heads");
  }

  void launch(const MergeParams& p, void* workspace, void*) const override {
    const int workers = workers_for(work_);
    if (!backward_) {
      core::parallel_for(blocks_.count(), workers, [&](std::int64_t block, int) {
        Forward<Real> forward(p);
        blocks_.for_each_row(block, [&](std::int64_t b, std::int64_t s, std::int64_t h) { forward.row(b, s, h); });
      });
      return;
    }
    auto* sums = static_cast<double*>(workspace);  // [rows_of_sums, num_heads]
    core::parallel_for(blocks_.count(), workers, [&](std::int64_t block, int) {
      Backward<Real> backward(p);
      std::array<double, kBlockHeads> dsink{};
      blocks_.for_each_row(block, [&](std::int64_t b, std::int64_t s, std::int64_t h) {
        dsink[static_cast<std::size_t>(h % kBlockHeads)] += static_cast<double>(backward.row(b, s, h));
      });
      if (!dsink_) return;
      const std::int64_t first = block % blocks_.head_blocks * kBlockHeads;
      std::copy_n(dsink.begin(), std::min(kBlockHeads, blocks_.num_heads - first),
                  sums + block / blocks_.head_blocks * blocks_.num_heads + first);
    });
    if (dsink_) store_dsink(p, sums);
  }

 private:
  void store_dsink(const MergeParams& p, const double* sums) const {
    for (std::int64_t h = 0; h < blocks_.num_heads; ++h) {
      double sum = 0.0;
      for (std::int64_t row = 0; row < blocks_.rows_of_sums(); ++row) sum += sums[row * blocks_.num_heads + h];
      operations::store_element(p.sink_dtype, p.dsink, h * p.dsink_stride, sum);
    }
  }

  Blocks blocks_;
  bool backward_, dsink_;
  double work_;  ///< as so many flops: half a megabyte is worth another thread
};

}  // namespace

std::unique_ptr<core::Kernel> make_merge_kernel(const MergeProblem& problem) {
  if (problem.dtype == DType::f64) return std::make_unique<MergeKernel<double>>(problem);
  return std::make_unique<MergeKernel<float>>(problem);
}

std::int64_t merge_tasks(const MergeProblem& problem) { return Blocks(problem).count(); }

}  // namespace tilewise::backends::cpu
