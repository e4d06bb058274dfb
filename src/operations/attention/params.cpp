// A described call to the plain parameters a kernel reads.
#include <algorithm>
#include <cmath>

#include "core/device.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/factors.hpp"
#include "operations/attention/lengths.hpp"
#include "operations/attention/rules.hpp"
#include "operations/layout.hpp"

namespace tilewise::operations::attention {
namespace {

using namespace core;  // checks of tensors, and the errors they throw

const std::int32_t* lengths(const TensorView& view) { return static_cast<const std::int32_t*>(view.data); }

/// Of the values of a bias or a sink.
device::BiasType value_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return device::kBiasBf16;
    case DType::f16:
      return device::kBiasF16;
    case DType::f64:
      return device::kBiasF64;
    case DType::boolean:
      return device::kBiasBool;
    default:
      return device::kBiasF32;
  }
}

/// Dimensions are aligned from the right; missing ones and those of size 1 get stride 0.
device::BiasTensor bias_tensor(const TensorView& view) {
  std::array<std::int64_t, 4> strides{};
  for (int axis = 0; axis < view.rank; ++axis) {
    if (size_at(view, axis) != 1) strides[static_cast<std::size_t>(axis + 4 - view.rank)] = stride_at(view, axis);
  }
  return {view.data, strides[0], strides[1], strides[2], strides[3]};
}

void set_options(const Call& call, const AttentionProblem& p, device::AttentionParams& params) {
  const AttentionOptions& o = call.options;
  params.cu_seqlens_q = lengths(o.cu_seqlens_q);
  params.cu_seqlens_k = lengths(o.cu_seqlens_k);
  params.seqused_q = lengths(o.seqused_q);
  params.seqused_k = lengths(o.seqused_k);
  params.leftpad_k = lengths(o.leftpad_k);
  params.window_left = p.window_left;
  params.window_right = folded_window_right(p);
  params.top_left = p.alignment == Alignment::top_left;
  set_factors(score_factors(p), params);
  params.bias_type = p.bias == BiasKind::none ? device::kBiasNone : value_type(bias_dtype(p));
  if (o.bias.defined()) params.bias = bias_tensor(o.bias);
  if (o.alibi_slopes.defined()) {
    params.alibi_slopes = static_cast<const float*>(o.alibi_slopes.data);
    params.alibi_batch_stride = o.alibi_slopes.rank == 2 ? o.alibi_slopes.strides[0] : 0;
    params.alibi_head_stride = stride_at(o.alibi_slopes, o.alibi_slopes.rank - 1);
  }
  params.sink.type = p.sink == SinkKind::none ? device::kBiasNone : value_type(sink_dtype(p));
  params.sink.data = o.sink.data;
  params.sink.stride = o.sink.strides[0];
  params.deterministic = p.deterministic;
  params.batch_invariant = p.batch_invariant;
  params.tables = o.tables.data();
  params.key_indices = index_tensor(o.key_indices, p.layout == Layout::thd);
  params.dtables = o.dtables.data();
  params.block_mask = o.block_mask.data();
}

device::HeadScales head_scales(const TensorView& view, const std::optional<double>& number, ScaleKind kind,
                               std::int64_t heads) {
  device::HeadScales scales{nullptr, 0, 0, static_cast<std::int32_t>(heads), static_cast<float>(number.value_or(1.0))};
  if (!view.defined()) return scales;
  scales.data = static_cast<const float*>(view.data);
  if (kind == ScaleKind::head) scales.head_stride = stride_at(view, 0);
  if (kind == ScaleKind::batch_head) {
    scales.batch_stride = stride_at(view, 0);
    scales.head_stride = stride_at(view, 1);
  }
  return scales;
}

void set_scales(const AttentionOptions& o, const AttentionProblem& p, device::AttentionParams& params) {
  const std::int64_t group = p.q_scale == ScaleKind::batch_head ? p.num_heads_q / p.num_heads_k : 1;
  params.q_scale = head_scales(o.q_scale, o.q_scale_value, p.q_scale, group);
  params.k_scale = head_scales(o.k_scale, o.k_scale_value, p.k_scale, 1);
  params.v_scale = head_scales(o.v_scale, o.v_scale_value, p.v_scale, 1);
}

void set_dropout(const AttentionOptions& o, const AttentionProblem& p, device::AttentionParams& params) {
  params.dropout_threshold = static_cast<std::uint32_t>(p.dropout_p * 65536.0);  // exact: a multiple of 2^-16
  params.seed = o.seed;
  params.offset = o.offset;
  params.seed_and_offset = static_cast<const std::int64_t*>(o.seed_and_offset.data);
  params.seed_and_offset_stride = o.seed_and_offset.strides[0];
}

void set_gradients(const Call& call, const AttentionProblem& p, device::AttentionParams& params) {
  const Axes axes = axes_of(p.layout);
  params.dout = tensor4(call.one("dout"), axes);
  params.dq = tensor4(call.one("dq"), axes);
  params.dk = tensor4(call.one("dk"), axes);
  params.dv = tensor4(call.one("dv"), axes);
  params.dlse = lse_tensor(call.one("dlse"), p.layout == Layout::thd);
  if (call.one("dbias").defined()) {
    params.dbias = bias_tensor(call.one("dbias"));
    std::ranges::copy(bias_shape(p), params.dbias_shape);
  }
  params.dsink = {call.one("dsink").data, call.one("dsink").strides[0], params.sink.type, 0};
}

}  // namespace

device::AttentionShape shape_of(const AttentionProblem& p) {
  device::AttentionShape shape{};
  shape.batch_size = p.batch_size;
  shape.seqlen_q = p.seqlen_q;
  shape.seqlen_k = p.seqlen_k;
  shape.num_heads_q = p.num_heads_q;
  shape.num_heads_k = p.num_heads_k;
  shape.head_dim = p.head_dim;
  shape.head_dim_v = p.head_dim_v;
  shape.total_q = p.total_q;
  shape.total_k = p.total_k;
  return shape;
}

device::AttentionParams make_params(const Call& call, const AttentionProblem& p) {
  device::AttentionParams params{};
  static_cast<device::AttentionShape&>(params) = shape_of(p);
  const Axes axes = axes_of(p.layout);
  params.q = tensor4(call.one("q"), axes);
  params.k = tensor4(call.one("k"), axes);
  params.v = tensor4(call.one("v"), axes);
  params.out = tensor4(call.one("out"), axes);
  params.softmax_lse = lse_tensor(call.one("softmax_lse"), p.layout == Layout::thd);
  set_options(call, p, params);
  set_scales(call.options, p, params);
  set_dropout(call.options, p, params);
  if (call.backward()) set_gradients(call, p, params);
  if (p.top_k > 0 && p.device == DeviceType::cpu && core::checks_requested()) check_selected_keys(params, p);
  return params;
}

}  // namespace tilewise::operations::attention
