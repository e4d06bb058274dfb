// Merging partial results over disjoint keys, on the CPU. A partial that saw nothing
// (lse = -inf) adds nothing, whatever its out holds.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "core/interrupt.hpp"
#include "core/message.hpp"
#include "core/overlap.hpp"
#include "core/parallel.hpp"
#include "device/common/float16.h"
#include "operations/elements.hpp"
#include "operations/layout.hpp"
#include "tilewise/attention.hpp"

namespace tilewise {
namespace operations::merge {
namespace {

using namespace core;  // checks of tensors, and the errors they throw

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMaxHeadDimV = 512;
constexpr std::int64_t kRowsPerTask = 64;

/// One row of a tensor: `dim` contiguous elements.
std::byte* row_of(const TensorView& view, const device::Tensor4& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  const std::int64_t offset = b * t.batch_stride + s * t.seq_stride + h * t.head_stride;
  return static_cast<std::byte*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
}

template <typename Element, typename Convert>
void add_scaled(double* sum, const std::byte* row, std::int64_t dim, double weight, Convert convert) {
  for (std::int64_t i = 0; i < dim; ++i) {
    Element element;
    std::memcpy(&element, row + i * std::int64_t{sizeof(Element)}, sizeof(Element));
    sum[i] += weight * static_cast<double>(convert(element));
  }
}

void add_scaled(double* sum, const std::byte* row, DType dtype, std::int64_t dim, double weight) {
  if (dtype == DType::f32) return add_scaled<float>(sum, row, dim, weight, [](float value) { return value; });
  if (dtype == DType::f64) return add_scaled<double>(sum, row, dim, weight, [](double value) { return value; });
  if (dtype == DType::bf16) return add_scaled<std::uint16_t>(sum, row, dim, weight, device::bf16_to_float);
  add_scaled<std::uint16_t>(sum, row, dim, weight, device::f16_to_float);
}

template <typename Element, typename Convert>
void store(std::byte* row, const double* values, std::int64_t dim, Convert convert) {
  for (std::int64_t i = 0; i < dim; ++i) {
    const Element element = convert(values[i]);
    std::memcpy(row + i * std::int64_t{sizeof(Element)}, &element, sizeof(Element));
  }
}

void store(std::byte* row, DType dtype, const double* values, std::int64_t dim) {
  const auto f32 = [](double value) { return static_cast<float>(value); };
  if (dtype == DType::f32) return store<float>(row, values, dim, f32);
  if (dtype == DType::f64) return store<double>(row, values, dim, [](double value) { return value; });
  if (dtype == DType::bf16)
    return store<std::uint16_t>(row, values, dim, [f32](double value) { return device::float_to_bf16(f32(value)); });
  store<std::uint16_t>(row, values, dim, [f32](double value) { return device::float_to_f16(f32(value)); });
}

struct Partial {
  const TensorView* view;
  device::Tensor4 out;
  device::LseTensor lse;
};

std::int64_t lse_offset(const device::LseTensor& t, std::int64_t b, std::int64_t h, std::int64_t s) {
  return b * t.batch_stride + h * t.head_stride + s * t.seq_stride;
}

class Merger {
 public:
  Merger(std::span<const TensorView> outs, std::span<const TensorView> lses, const TensorView& sink,
         const TensorView& out, const TensorView& lse, Layout layout)
      : sink_(sink), out_(out), out4_(tensor4(out, axes_of(layout))), lse_(lse_tensor(lse, layout == Layout::thd)) {
    const Axes axes = axes_of(layout);
    batch_size_ = axes.batch < 0 ? 1 : size_at(out, axes.batch);
    seqlen_ = size_at(out, axes.seq);
    num_heads_ = size_at(out, axes.head);
    dim_ = size_at(out, axes.dim);
    for (std::size_t n = 0; n < outs.size(); ++n) {
      partials_.push_back({&outs[n], tensor4(outs[n], axes), lse_tensor(lses[n], layout == Layout::thd)});
    }
  }

  void run() const {
    const std::int64_t blocks = (seqlen_ + kRowsPerTask - 1) / kRowsPerTask;
    if (batch_size_ == 0 || blocks == 0) return;
    const double elements = static_cast<double>(batch_size_ * num_heads_) * static_cast<double>(seqlen_ * dim_);
    const Interruptible interruptible(1e-3 * elements * static_cast<double>(partials_.size()) / num_threads());
    parallel_for(batch_size_ * num_heads_ * blocks, [&](std::int64_t task, int) {
      const std::int64_t b = task / blocks / num_heads_, h = task / blocks % num_heads_;
      const std::int64_t begin = task % blocks * kRowsPerTask, end = std::min(begin + kRowsPerTask, seqlen_);
      for (std::int64_t s = begin; s < end; ++s) merge_row(b, h, s);
    });
  }

 private:
  void merge_row(std::int64_t b, std::int64_t h, std::int64_t s) const {
    const double sink = sink_.defined() ? load_element(sink_.dtype, sink_.data, h * sink_.strides[0]) : -kInfinity;
    double largest = sink;  // of those that are numbers; a NaN reaches `total` and stays
    bool seen = false;
    for (const Partial& p : partials_) {
      const double lse = lse_of(p, b, h, s);
      seen |= lse != -kInfinity;
      largest = std::max(largest, lse);
    }
    std::array<double, kMaxHeadDimV> sum;
    std::fill_n(sum.begin(), dim_, 0.0);
    double total = sink == -kInfinity ? 0.0 : std::exp(sink - largest);
    for (const Partial& p : partials_) {
      const double lse = lse_of(p, b, h, s);
      if (lse == -kInfinity) continue;
      const double weight = std::exp(lse - largest);
      total += weight;
      add_scaled(sum.data(), row_of(*p.view, p.out, b, s, h), p.view->dtype, dim_, weight);
    }
    // A row that saw nothing at all has out 0, and as its lse the sink's logit, whatever number that is.
    if (seen) {
      for (std::int64_t i = 0; i < dim_; ++i) sum[static_cast<std::size_t>(i)] /= total;
    }
    store(row_of(out_, out4_, b, s, h), out_.dtype, sum.data(), dim_);
    if (lse_.data != nullptr) {
      store_element(statistics_dtype(out_.dtype), lse_.data, lse_offset(lse_, b, h, s),
                    seen ? largest + std::log(total) : sink);
    }
  }

  [[nodiscard]] double lse_of(const Partial& p, std::int64_t b, std::int64_t h, std::int64_t s) const {
    return load_element(statistics_dtype(out_.dtype), p.lse.data, lse_offset(p.lse, b, h, s));
  }

  const TensorView& sink_;
  const TensorView& out_;
  device::Tensor4 out4_;
  device::LseTensor lse_;
  std::vector<Partial> partials_;
  std::int64_t batch_size_, seqlen_, num_heads_, dim_;
};

/// The shapes of `out` and of its log-sum-exp.
struct MergeShapes {
  Shape out, lse;
};

MergeShapes shapes_of(const TensorView& out, Layout layout) {
  const Axes axes = axes_of(layout);
  const Dim batch{"batch_size", axes.batch < 0 ? 0 : size_at(out, axes.batch)};
  const Dim seq{axes.batch < 0 ? "total_q" : "seqlen_q", size_at(out, axes.seq)};
  const Dim heads{"num_heads_q", size_at(out, axes.head)};
  const Dim dim{"head_dim_v", size_at(out, axes.dim)};
  return {tensor_shape(layout, batch, seq, heads, dim), axes.batch < 0 ? Shape{heads, seq} : Shape{batch, heads, seq}};
}

void check_out(const TensorView& out, Layout layout) {
  if (out.defined() && out.device.type != DeviceType::cpu) {
    invalid_type("out: must be on cpu (got ", to_string(out.device.type), ")");
  }
  check_view(out, "out", out.device, "out");
  if (!is_element_type(out.dtype)) {
    invalid_type("out: dtype must be f32, bf16, f16 or f64 (got ", to_string(out.dtype), ")");
  }
  check_rank(out, "out", axes_of(layout).rank(), layout == Layout::thd ? "[total, heads, dim]" : "four dimensions");
  check_contiguous_last(out, "out");
  check_writable(out, "out");
  const std::int64_t dim = size_at(out, axes_of(layout).dim);
  if (dim < 1 || dim > kMaxHeadDimV) {
    invalid_argument("out: head_dim_v must be 1 to ", kMaxHeadDimV, " (got ", dim, ")");
  }
}

void check_partial(const TensorView& partial, std::string_view name, const TensorView& out, const Shape& shape) {
  check_view(partial, name, out.device, "out");
  if (partial.dtype != statistics_dtype(out.dtype)) check_dtype(partial, name, out.dtype);
  check_shape(partial, name, shape);
  check_contiguous_last(partial, name);
}

void check_lse(const TensorView& view, std::string_view name, const TensorView& out, const Shape& shape) {
  check_view(view, name, out.device, "out");
  check_dtype(view, name, statistics_dtype(out.dtype));
  check_shape(view, name, shape);
}

void check_sink(const TensorView& sink, const TensorView& out, const Shape& shape) {
  check_view(sink, "sink", out.device, "out");
  if (sink.dtype != out.dtype) check_dtype(sink, "sink", DType::f32);
  check_shape(sink, "sink", shape);
}

void check_memory(std::span<const TensorView> outs, std::span<const TensorView> lses, const TensorView& sink,
                  const TensorView& out, const TensorView& softmax_lse) {
  const std::array<NamedTensor, 2> outputs{{{"out", out}, {"softmax_lse", softmax_lse}}};
  const NamedTensor last[] = {{"sink", sink}};
  check_apart(outputs, last);
  for (std::size_t n = 0; n < outs.size(); ++n) {
    const std::string out_name = concat("outs[", n, "]"), lse_name = concat("lses[", n, "]");
    const std::array<NamedTensor, 2> partial{{{out_name, outs[n]}, {lse_name, lses[n]}}};
    check_apart(outputs, partial);
  }
}

}  // namespace
}  // namespace operations::merge

void merge(std::span<const TensorView> outs, std::span<const TensorView> lses, const TensorView& sink,
           const TensorView& out, const TensorView& softmax_lse, Layout layout) {
  if (outs.empty()) core::invalid_argument("outs: must hold at least one partial result (got none)");
  if (outs.size() != lses.size()) {
    core::invalid_argument("lses: must have as many entries as outs, ", outs.size(), " (got ", lses.size(), ")");
  }
  operations::merge::check_out(out, layout);
  const operations::merge::MergeShapes shapes = operations::merge::shapes_of(out, layout);
  for (std::size_t n = 0; n < outs.size(); ++n) {
    operations::merge::check_partial(outs[n], core::concat("outs[", n, "]"), out, shapes.out);
    operations::merge::check_lse(lses[n], core::concat("lses[", n, "]"), out, shapes.lse);
  }
  if (sink.defined()) {
    operations::merge::check_sink(sink, out, {{"num_heads_q", core::size_at(out, operations::axes_of(layout).head)}});
  }
  if (softmax_lse.defined()) {
    operations::merge::check_lse(softmax_lse, "softmax_lse", out, shapes.lse);
    core::check_writable(softmax_lse, "softmax_lse");
  }
  operations::merge::check_memory(outs, lses, sink, out, softmax_lse);
  operations::merge::Merger(outs, lses, sink, out, softmax_lse, layout).run();
}

}  // namespace tilewise
