// Merging and its gradients in double precision (long double where out is f64), one row at a time.
#include "backends/reference/merge/reference_merge.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/parallel.hpp"
#include "operations/elements.hpp"
#include "operations/merge/merge.hpp"

namespace tilewise::backends {
namespace reference {
namespace {

using operations::load_element, operations::store_element;
using operations::merge::MergeParams, operations::merge::Part;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::int64_t row_offset(const device::Tensor4& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  return b * t.batch_stride + s * t.seq_stride + h * t.head_stride;
}
std::int64_t lse_offset(const device::LseTensor& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  return b * t.batch_stride + h * t.head_stride + s * t.seq_stride;
}

/// What each part and the sink weigh in one row: exp(lse - L), and L.
template <typename Real>
struct Weights {
  std::vector<Real> parts;  ///< 0 where the part saw nothing
  std::vector<bool> seen;
  Real sink = 0, lse = 0;
  bool any_seen = false;

  Weights(const MergeParams& p, std::int64_t b, std::int64_t s, std::int64_t h) {
    const double own = p.sink == nullptr ? -kInfinity : load_element(p.sink_dtype, p.sink, h * p.sink_stride);
    double largest = own;  // of those that are numbers; a NaN reaches `total` and stays
    for (const Part& part : p.parts) {
      const double lse = load_element(p.statistics, part.lse.data, lse_offset(part.lse, b, s, h));
      seen.push_back(lse != -kInfinity);
      any_seen = any_seen || seen.back();
      parts.push_back(lse);
      largest = std::max(largest, lse);
    }
    sink = own == -kInfinity ? 0 : std::exp(Real{own} - Real{largest});
    lse = own;
    Real total = sink;
    for (std::size_t n = 0; n < parts.size(); ++n) {
      parts[n] = seen[n] ? std::exp(parts[n] - Real{largest}) : 0;
      total += parts[n];
    }
    if (!any_seen) return;  // the sink is all there is, whatever number it is
    lse = Real{largest} + std::log(total);
    sink /= total;
    for (Real& part : parts) part /= total;
  }
};

template <typename Real>
void merge_row(const MergeParams& p, std::int64_t b, std::int64_t s, std::int64_t h) {
  const Weights<Real> weights(p, b, s, h);
  for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
    Real sum = 0;
    for (std::size_t n = 0; n < p.parts.size(); ++n) {
      const Part& part = p.parts[n];
      if (!weights.seen[n]) continue;
      sum += weights.parts[n] * load_element(part.dtype, part.out.data, row_offset(part.out, b, s, h) + d);
    }
    store_element(p.dtype, p.out.data, row_offset(p.out, b, s, h) + d, static_cast<double>(sum));
  }
  if (p.softmax_lse.data == nullptr) return;
  store_element(p.statistics, p.softmax_lse.data, lse_offset(p.softmax_lse, b, s, h), static_cast<double>(weights.lse));
}

/// Writes the gradients of one row's parts and returns what the row adds to that of the sink.
template <typename Real>
Real row_gradients(const MergeParams& p, std::int64_t b, std::int64_t s, std::int64_t h) {
  const Weights<Real> weights(p, b, s, h);
  const auto dout_at = [&](std::int64_t d) {
    return Real{load_element(p.dtype, p.dout.data, row_offset(p.dout, b, s, h) + d)};
  };
  const Real dlse = p.dlse.data == nullptr ? 0 : load_element(p.statistics, p.dlse.data, lse_offset(p.dlse, b, s, h));
  std::vector<Real> dots(p.parts.size());
  Real delta = 0;
  for (std::size_t n = 0; n < p.parts.size(); ++n) {
    const Part& part = p.parts[n];
    if (!weights.seen[n]) continue;
    for (std::int64_t d = 0; d < p.head_dim_v; ++d)
      dots[n] += dout_at(d) * load_element(part.dtype, part.out.data, row_offset(part.out, b, s, h) + d);
    delta += weights.parts[n] * dots[n];
  }
  for (std::size_t n = 0; n < p.parts.size(); ++n) {
    const Part& part = p.parts[n];
    for (std::int64_t d = 0; part.dout.data != nullptr && d < p.head_dim_v; ++d) {
      const Real gradient = weights.seen[n] ? weights.parts[n] * dout_at(d) : 0;
      store_element(part.dtype, part.dout.data, row_offset(part.dout, b, s, h) + d, static_cast<double>(gradient));
    }
    if (part.dlse.data == nullptr) continue;
    const Real gradient = weights.seen[n] ? weights.parts[n] * (dots[n] - delta + dlse) : 0;
    store_element(p.statistics, part.dlse.data, lse_offset(part.dlse, b, s, h), static_cast<double>(gradient));
  }
  return weights.sink * (dlse - delta);
}

/// Calls visit(b, s, h) for every row of one head.
template <typename Visit>
void for_each_row(const MergeParams& p, std::int64_t h, Visit&& visit) {
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    for (std::int64_t s = 0; s < p.seqlen_q && !(s % 256 == 0 && core::abandoned()); ++s) visit(b, s, h);
  }
}

template <typename Real>
void forward(const MergeParams& p) {
  core::parallel_for(p.num_heads_q, [&](std::int64_t head, int) {
    for_each_row(p, head, [&](std::int64_t b, std::int64_t s, std::int64_t h) { merge_row<Real>(p, b, s, h); });
  });
}

template <typename Real>
void backward(const MergeParams& p) {
  core::parallel_for(p.num_heads_q, [&](std::int64_t head, int) {
    Real dsink = 0;
    for_each_row(p, head,
                 [&](std::int64_t b, std::int64_t s, std::int64_t h) { dsink += row_gradients<Real>(p, b, s, h); });
    if (p.dsink != nullptr) store_element(p.sink_dtype, p.dsink, head * p.dsink_stride, static_cast<double>(dsink));
  });
}

class MergeKernel final : public operations::merge::Kernel {
 public:
  explicit MergeKernel(const MergeProblem& problem)
      : backward_(problem.pass == MergePass::merge_backward), wide_(problem.dtype == DType::f64) {}
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return 0; }
  [[nodiscard]] std::string schedule() const override { return "f64, one row at a time"; }
  void launch(const MergeParams& params, void*, void*) const override {
    if (backward_) return wide_ ? backward<long double>(params) : backward<double>(params);
    return wide_ ? forward<long double>(params) : forward<double>(params);
  }

 private:
  bool backward_, wide_;
};

class MergeImplementation final : public operations::merge::Implementation {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "reference"; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::merge::FeatureSet supported() const noexcept override {
    using enum operations::merge::Feature;
    return {forward, backward, f32, bf16, f16, f64, f32_parts, mixed_parts, packed, stacked, sink, dlse, dsink};
  }

  /// The order of magnitude, on one thread. Each cost is above what any faster implementation has in its place.
  [[nodiscard]] core::Verdict judge(const MergeProblem& problem, const core::DeviceDescription&) const override {
    constexpr double kCallUs = 20.0, kPartUs = 0.5, kElementUs = 0.02;
    const double rows = static_cast<double>(operations::merge::rows_of(problem));
    const double parts = rows * static_cast<double>(problem.parts);
    return core::Verdict::accept(kCallUs + parts * (kPartUs + kElementUs * static_cast<double>(problem.head_dim_v)),
                                 std::make_unique<MergeKernel>(problem));
  }
};

}  // namespace
}  // namespace reference

const core::Implementation& reference_merge_implementation() {
  static const reference::MergeImplementation implementation;
  return implementation;
}

}  // namespace tilewise::backends
