// Draws the tensors of a sample call and counts its work.
#include "sample_call.hpp"

#include <algorithm>
#include <array>

#include "device/common/mask.h"
#include "expression/expression.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/rules.hpp"
#include "operations/attention/score_functions.hpp"
#include "operations/attention/tensors.hpp"
#include "operations/layout.hpp"

namespace tilewise::tools {

TensorView SampleCall::add_data(bool query_side, std::int64_t heads, std::int64_t dim, bool random,
                                std::string_view name, DType given_dtype) {
  const Problem& p = problem_;
  const operations::Axes axes = operations::axes_of(p.layout);
  std::array<std::int64_t, 4> shape{};
  const auto at = [&shape](int axis) -> std::int64_t& { return shape[static_cast<std::size_t>(axis)]; };
  if (p.layout == Layout::thd) {
    at(axes.seq) = query_side ? p.total_q : p.total_k;
  } else {
    at(axes.batch) = p.batch_size;
    at(axes.seq) = query_side ? p.seqlen_q : p.seqlen_k;
  }
  at(axes.head) = heads;
  at(axes.dim) = dim;
  const DType dtype = given_dtype == DType::none ? p.dtype : given_dtype;
  const auto sizes = std::span(shape).first(static_cast<std::size_t>(axes.rank()));
  return random ? tensors_.add_random(dtype, sizes, name) : tensors_.add(dtype, sizes, name);
}

TensorView SampleCall::add_lse(std::string_view name) {
  const Problem& p = problem_;
  if (p.layout == Layout::thd)
    return tensors_.add(operations::statistics_dtype(p.dtype), {p.num_heads_q, p.total_q}, name);
  return tensors_.add(operations::statistics_dtype(p.dtype), {p.batch_size, p.num_heads_q, p.seqlen_q}, name);
}

TensorView SampleCall::add_cu_seqlens(std::int64_t total, std::int64_t longest, std::string_view name) {
  const TensorView view = tensors_.add(DType::i32, {problem_.batch_size + 1}, name);
  auto* values = static_cast<std::int32_t*>(view.data);
  const std::int64_t length = std::min(longest, total / std::max<std::int64_t>(problem_.batch_size, 1));
  for (std::int64_t b = 0; b <= problem_.batch_size; ++b) values[b] = static_cast<std::int32_t>(b * length);
  return view;
}

TensorView SampleCall::add_lengths(std::int32_t length, std::string_view name) {
  const TensorView view = tensors_.add(DType::i32, {problem_.batch_size}, name);
  std::fill_n(static_cast<std::int32_t*>(view.data), problem_.batch_size, length);
  return view;
}

void SampleCall::make_options() {
  const Problem& p = problem_;
  AttentionOptions& o = forward_.options;
  o = operations::attention::stated_options(p);
  if (p.seed_tensor) o.seed_and_offset = tensors_.add(DType::i64, {2}, "seed_and_offset");
  if (p.bias != BiasKind::none) {
    const auto [batch, heads, queries, keys] = operations::attention::bias_shape(p);
    o.bias = tensors_.add_random(operations::attention::bias_dtype(p), {batch, heads, queries, keys}, "bias");
  }
  if (p.alibi_slopes == AlibiKind::per_head)
    o.alibi_slopes = tensors_.add_random(operations::statistics_dtype(p.dtype), {p.num_heads_q}, "alibi_slopes");
  if (p.alibi_slopes == AlibiKind::per_batch_head)
    o.alibi_slopes =
        tensors_.add_random(operations::statistics_dtype(p.dtype), {p.batch_size, p.num_heads_q}, "alibi_slopes");
  if (p.sink != SinkKind::none)
    o.sink = tensors_.add_random(operations::attention::sink_dtype(p), {p.num_heads_q}, "sink");
  for (std::size_t i = 0; i < p.tables.size(); ++i) {
    const TableShape& table = p.tables[i];
    const std::span shape(table.shape.data(), static_cast<std::size_t>(table.rank));
    const std::string_view name = operations::attention::table_name(i);
    // Of ints zeros, which are indices of any table and documents alike.
    const bool whole = expression::table_type(table.dtype, name) == expression::Type::integer;
    o.tables.push_back(whole ? tensors_.add(table.dtype, shape, name) : tensors_.add_random(table.dtype, shape, name));
  }
  const auto scales = [&](ScaleKind kind, std::int64_t heads, std::string_view name) {
    TensorView view;
    if (kind == ScaleKind::none) return view;
    if (kind == ScaleKind::head) view = tensors_.add(DType::f32, {heads}, name);
    if (kind == ScaleKind::batch_head) view = tensors_.add(DType::f32, {p.batch_size, p.num_heads_k}, name);
    if (kind == ScaleKind::tensor) view = tensors_.add(DType::f32, {1}, name);
    std::fill_n(static_cast<float*>(view.data), view.numel(), 1.0f);
    return view;
  };
  o.q_scale = scales(p.q_scale, p.num_heads_q, "q_scale");
  o.k_scale = scales(p.k_scale, p.num_heads_k, "k_scale");
  o.v_scale = scales(p.v_scale, p.num_heads_k, "v_scale");
  if (p.q_scale == ScaleKind::tensor) o.q_scale.rank = 0;
  if (p.k_scale == ScaleKind::tensor) o.k_scale.rank = 0;
  if (p.v_scale == ScaleKind::tensor) o.v_scale.rank = 0;
  std::int64_t used_q = p.seqlen_q, used_k = p.seqlen_k;
  if (p.layout == Layout::thd) {
    o.cu_seqlens_q = add_cu_seqlens(p.total_q, p.seqlen_q, "cu_seqlens_q");
    o.cu_seqlens_k = add_cu_seqlens(p.total_k, p.seqlen_k, "cu_seqlens_k");
    if (p.batch_size > 0) used_q = static_cast<const std::int32_t*>(o.cu_seqlens_q.data)[1];
    if (p.batch_size > 0) used_k = static_cast<const std::int32_t*>(o.cu_seqlens_k.data)[1];
  }
  if (p.seqused_q) o.seqused_q = add_lengths(static_cast<std::int32_t>(used_q), "seqused_q");
  if (p.seqused_k) o.seqused_k = add_lengths(static_cast<std::int32_t>(used_k), "seqused_k");
  if (p.leftpad_k) o.leftpad_k = add_lengths(0, "leftpad_k");
}

SampleCall::SampleCall(const Problem& problem) : problem_(problem) {
  const Problem& p = problem_;
  forward_.q = add_data(true, p.num_heads_q, p.head_dim, true, "q");
  forward_.k = add_data(false, p.num_heads_k, p.head_dim, true, "k");
  forward_.v = add_data(false, p.num_heads_k, p.head_dim_v, true, "v");
  forward_.out = add_data(true, p.num_heads_q, p.head_dim_v, false, "out", operations::attention::out_dtype_of(p));
  if (p.softmax_lse) forward_.softmax_lse = add_lse("softmax_lse");
  make_options();
  if (p.operation == Operation::attention_backward) {
    if (problem.device == DeviceType::cpu) attention_forward(forward_);
    make_gradients();
  }
  problem_ = p.operation == Operation::attention_forward ? describe(forward_) : describe(backward_);
}

void SampleCall::move_to(Device device) {
  const auto move = [&](TensorView& view) {
    if (!view.defined()) return;
    const std::span<const std::byte> host = tensors_.memory_of(view);
    const core::DeviceMemory& memory = on_device_.emplace_back(device, std::max<std::size_t>(host.size(), 1));
    memory.write(memory.data(), host);
    view.data = memory.data();
    view.device = device;
  };
  if (problem_.operation == Operation::attention_forward) {
    operations::attention::change_each_tensor(forward_, move);
    problem_ = describe(forward_);
    return;
  }
  operations::attention::change_each_tensor(backward_, move);
  const auto& [dout, dlse, q, k, v, out, softmax_lse, dq, dk, dv, dbias, dsink, options] = backward_;
  forward_ = {q, k, v, out, softmax_lse, options};
  attention_forward(forward_);
  problem_ = describe(backward_);
}

void SampleCall::make_gradients() {
  const Problem& p = problem_;
  backward_.q = forward_.q;
  backward_.k = forward_.k;
  backward_.v = forward_.v;
  backward_.out = forward_.out;
  backward_.softmax_lse = forward_.softmax_lse;
  backward_.options = forward_.options;
  backward_.dout = add_data(true, p.num_heads_q, p.head_dim_v, true, "dout");
  if (p.dlse) backward_.dlse = add_lse("dlse");
  if (p.dq) backward_.dq = add_data(true, p.num_heads_q, p.head_dim, false, "dq");
  if (p.dk) backward_.dk = add_data(false, p.num_heads_k, p.head_dim, false, "dk");
  if (p.dv) backward_.dv = add_data(false, p.num_heads_k, p.head_dim_v, false, "dv");
  if (p.dbias) backward_.dbias = tensors_.add(forward_.options.bias.dtype, shape_of(forward_.options.bias), "dbias");
  if (p.dsink) backward_.dsink = tensors_.add(operations::attention::sink_dtype(p), {p.num_heads_q}, "dsink");
}

void SampleCall::run(const Plan& plan) const {
  if (problem_.operation == Operation::attention_forward) return tilewise::run(plan, forward_);
  tilewise::run(plan, backward_);
}

double SampleCall::flops() const {
  const Problem& p = problem_;
  const bool backward = p.operation == Operation::attention_backward;
  const device::AttentionParams params = operations::attention::make_params(
      backward ? operations::attention::call_of(backward_) : operations::attention::call_of(forward_), problem_);
  double pairs = 0.0;
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    const device::Sequence sequence = device::sequence_of(params, b);
    const std::int64_t d = device::diagonal_offset(params, sequence);
    for (std::int64_t i = 0; i < sequence.seqlen_q; ++i) {
      const device::KeyRange keys = device::visible_keys(params, sequence, d, i);
      pairs += static_cast<double>(keys.end - keys.begin);
    }
  }
  const auto dim = static_cast<double>(p.head_dim), dim_v = static_cast<double>(p.head_dim_v);
  const double products = backward ? 3.0 * dim + 2.0 * dim_v : dim + dim_v;
  return 2.0 * pairs * static_cast<double>(p.num_heads_q) * products;
}

}  // namespace tilewise::tools
