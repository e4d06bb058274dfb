// A small dense call that owns its tensors, for tests that say what every number is: closed
// forms, finite differences, flipped options.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "operations/attention/attention.hpp"
#include "tilewise/attention.hpp"
#include "verify/buffer.hpp"
#include "verify/device_run.hpp"
#include "verify/random.hpp"

namespace tilewise::test {

/// A row-major tensor with its memory. Copies of its view stay valid while it lives.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, const std::vector<std::int64_t>& shape)
      : buffer_(std::make_shared<verify::Buffer>(dtype, shape, verify::Placement{.order = natural_order(shape)})) {}

  [[nodiscard]] TensorView view() const { return buffer_ ? buffer_->view() : TensorView{}; }
  [[nodiscard]] std::span<std::byte> bytes() const { return buffer_ ? buffer_->bytes() : std::span<std::byte>{}; }
  [[nodiscard]] double get(std::initializer_list<std::int64_t> position) const {
    return verify::value_at(view(), verify::offset_of(view(), {position.begin(), position.size()}));
  }
  void set(std::initializer_list<std::int64_t> position, double value) {
    verify::store_at(view(), verify::offset_of(view(), {position.begin(), position.size()}), value);
  }
  /// Calls value(position) for every element and stores it.
  template <typename Value>
  void fill_with(Value&& value) {
    verify::for_each_element(view(), [&](std::span<const std::int64_t> position, std::int64_t offset) {
      verify::store_at(view(), offset, value(position));
    });
  }
  void fill(double value) {
    fill_with([value](auto) { return value; });
  }
  /// Every element, row-major.
  [[nodiscard]] std::vector<double> values() const {
    std::vector<double> all;
    all.reserve(static_cast<std::size_t>(size()));
    verify::for_each_element(view(),
                             [&](auto, std::int64_t offset) { all.push_back(verify::value_at(view(), offset)); });
    return all;
  }
  /// Elements count in row-major order.
  [[nodiscard]] std::int64_t size() const { return view().numel(); }
  [[nodiscard]] double at(std::int64_t index) const { return verify::value_at(view(), index); }
  void set_at(std::int64_t index, double value) { verify::store_at(view(), index, value); }

 private:
  static std::vector<int> natural_order(const std::vector<std::int64_t>& shape) {
    std::vector<int> order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  std::shared_ptr<verify::Buffer> buffer_;
};

struct Sizes {
  std::int64_t batch = 1, seqlen_q = 4, seqlen_k = 4, heads_q = 1, heads_k = 1, dim = 4, dim_v = 4;
  DType dtype = DType::f32;
};

/// Where an implementation runs; the CPU for a name that is not in the table.
inline DeviceType device_of(std::string_view implementation) {
  for (const core::Implementation* row : core::implementation_table())
    if (row->name() == implementation) return row->device();
  return DeviceType::cpu;
}

/// Of two tensors of one shape; NaN counts as infinite.
inline double largest_difference(const Tensor& a, const Tensor& b) {
  double largest = 0.0;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a.at(i) - b.at(i));
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

/// Layout bshd. Inputs are drawn from a seed; outputs hold NaN until written.
class DenseCall {
 public:
  explicit DenseCall(const Sizes& sizes, std::uint64_t seed = 1) : sizes(sizes), rng_(seed) {
    const Sizes& s = sizes;
    q = normal(s.dtype, {s.batch, s.seqlen_q, s.heads_q, s.dim});
    k = normal(s.dtype, {s.batch, s.seqlen_k, s.heads_k, s.dim});
    v = normal(s.dtype, {s.batch, s.seqlen_k, s.heads_k, s.dim_v});
    out = Tensor(s.dtype, {s.batch, s.seqlen_q, s.heads_q, s.dim_v});
    lse = Tensor(statistics(), {s.batch, s.heads_q, s.seqlen_q});
  }

  Sizes sizes;
  Tensor q, k, v, out, lse;
  Tensor dout, dlse, dq, dk, dv, dbias, dsink;
  Tensor bias, alibi_slopes, sink, seqused_q, seqused_k, leftpad_k, seed_and_offset, key_indices;
  std::vector<Tensor> block_mask;
  AttentionOptions options;

  /// Element type of softmax_lse, dlse and alibi_slopes.
  [[nodiscard]] DType statistics() const { return sizes.dtype == DType::f64 ? DType::f64 : DType::f32; }

  /// Standard normal values.
  Tensor normal(DType dtype, const std::vector<std::int64_t>& shape) {
    Tensor tensor(dtype, shape);
    tensor.fill_with([&](auto) { return rng_.normal(); });
    return tensor;
  }
  static Tensor lengths(const std::vector<std::int64_t>& values) {
    Tensor tensor(DType::i32, {static_cast<std::int64_t>(values.size())});
    for (std::size_t i = 0; i < values.size(); ++i)
      tensor.set_at(static_cast<std::int64_t>(i), static_cast<double>(values[i]));
    return tensor;
  }

  /// Spread over `keys` keys; every seventh is none.
  static Tensor indices(const std::vector<std::int64_t>& shape, std::int64_t keys) {
    Tensor tensor(DType::i32, shape);
    for (std::int64_t i = 0; i < tensor.size(); ++i)
      tensor.set_at(i, i % 7 == 6 ? -1.0 : static_cast<double>((i * i + 5 * i) % keys));
    return tensor;
  }

  /// Draws dout (and dlse) and makes room for every gradient the call has.
  void prepare_backward(bool with_dlse = false) {
    const Sizes& s = sizes;
    dout = normal(s.dtype, {s.batch, s.seqlen_q, s.heads_q, s.dim_v});
    if (with_dlse) dlse = normal(statistics(), {s.batch, s.heads_q, s.seqlen_q});
    dq = Tensor(s.dtype, {s.batch, s.seqlen_q, s.heads_q, s.dim});
    dk = Tensor(s.dtype, {s.batch, s.seqlen_k, s.heads_k, s.dim});
    dv = Tensor(s.dtype, {s.batch, s.seqlen_k, s.heads_k, s.dim_v});
    const TensorView b = bias.view();
    if (b.defined() && b.dtype != DType::boolean) dbias = Tensor(b.dtype, {b.shape.begin(), b.shape.begin() + b.rank});
    if (sink.view().defined()) dsink = Tensor(sink.view().dtype, {s.heads_q});
  }

  [[nodiscard]] ForwardArguments forward_arguments() const {
    return {q.view(), k.view(), v.view(), out.view(), lse.view(), all_options()};
  }
  [[nodiscard]] BackwardArguments backward_arguments() const {
    BackwardArguments a;
    a.dout = dout.view(), a.dlse = dlse.view();
    a.q = q.view(), a.k = k.view(), a.v = v.view(), a.out = out.view(), a.softmax_lse = lse.view();
    a.dq = dq.view(), a.dk = dk.view(), a.dv = dv.view(), a.dbias = dbias.view(), a.dsink = dsink.view();
    a.options = all_options();
    return a;
  }
  /// By a GPU's implementation: on copies there, which are copied back.
  void forward(std::string_view implementation = "reference") {
    if (const DeviceType device = device_of(implementation); device != DeviceType::cpu) {
      verify::DeviceRun(forward_arguments(), memory(), implementation, {device, 0}).run();
    } else {
      attention_forward(forward_arguments(), {std::string(implementation)});
    }
  }
  void backward(std::string_view implementation = "reference") {
    if (const DeviceType device = device_of(implementation); device != DeviceType::cpu) {
      verify::DeviceRun(backward_arguments(), memory(), implementation, {device, 0}).run();
    } else {
      attention_backward(backward_arguments(), {std::string(implementation)});
    }
  }

 private:
  [[nodiscard]] AttentionOptions all_options() const {
    AttentionOptions all = options;
    all.bias = bias.view();
    all.alibi_slopes = alibi_slopes.view();
    all.sink = sink.view();
    all.seqused_q = seqused_q.view();
    all.seqused_k = seqused_k.view();
    all.leftpad_k = leftpad_k.view();
    all.key_indices = key_indices.view();
    for (const Tensor& tensor : block_mask) all.block_mask.push_back(tensor.view());
    if (seed_and_offset.view().defined()) all.seed_and_offset = seed_and_offset.view();
    return all;
  }
  [[nodiscard]] std::vector<std::span<std::byte>> memory() const {
    std::vector<std::span<std::byte>> all;
    for (const Tensor* tensor : {&q,
                                 &k,
                                 &v,
                                 &out,
                                 &lse,
                                 &dout,
                                 &dlse,
                                 &dq,
                                 &dk,
                                 &dv,
                                 &dbias,
                                 &dsink,
                                 &bias,
                                 &alibi_slopes,
                                 &sink,
                                 &seqused_q,
                                 &seqused_k,
                                 &leftpad_k,
                                 &seed_and_offset,
                                 &key_indices})
      if (tensor->view().defined()) all.push_back(tensor->bytes());
    for (const Tensor& tensor : block_mask) all.push_back(tensor.bytes());
    return all;
  }
  verify::Random rng_;
};

}  // namespace tilewise::test
