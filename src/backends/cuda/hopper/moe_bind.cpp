// A call's tensors in the blocks of an expert layer's kernels.
#include <cstdint>

#include "backends/cuda/hopper/moe_kernels.hpp"
#include "backends/portable/product/schedule.hpp"
#include "core/ceil_div.hpp"

namespace tilewise::backends::hopper {
namespace {

using device::ExpertBias, device::ExpertScales, device::PairTensor, device::RowTensor;
using operations::ExpertMatrices, operations::ExpertVectors, operations::Matrix, operations::moe::MoeParams;

constexpr std::int64_t kRowElementBytes = 2;

/// In units of 16 bits, of rows of bytes too.
RowTensor rows_of(const Matrix& m) {
  return {m.data, m.row_stride * static_cast<std::int64_t>(size_of(m.dtype)) / kRowElementBytes};
}
PairTensor ids_of(const Matrix& m) {
  return {m.data, m.row_stride, m.column_stride, static_cast<std::int32_t>(size_of(m.dtype)), 0};
}
PairTensor weights_of(const Matrix& m) {
  return {m.data, m.row_stride, m.column_stride, portable::bias_type_of(m.dtype), 0};
}
ExpertBias bias_of(const ExpertVectors& v) {
  return {v.data, v.expert_stride, 0, v.stride, portable::bias_type_of(v.dtype), 0};
}
ExpertBias gate_up_bias_of(const MoeParams& call) {
  ExpertBias bias = bias_of(call.gate_up_bias);
  if (call.gate_layout == device::GateLayout::concatenated) bias.gate_stride = call.down.columns * bias.stride;
  if (call.gate_layout == device::GateLayout::interleaved) bias.gate_stride = bias.stride, bias.stride *= 2;
  return bias;
}

/// Whether scales can be loaded 16 bytes at a time, those around a row's included.
bool lie_in_runs(const ExpertScales& s, std::int64_t experts) {
  constexpr std::int64_t kRun = 16;
  const std::int64_t row = s.columns * s.scale_bytes, expert = row * s.row_blocks;
  const bool gaps = (s.columns > 1 && s.column_stride != s.scale_bytes) || (s.row_blocks > 1 && s.row_stride != row) ||
                    (experts > 1 && s.expert_stride != expert);
  return !gaps && reinterpret_cast<std::uintptr_t>(s.data) % kRun == 0 && experts * expert % kRun == 0;
}
void bind_scales(const ExpertMatrices& w, device::GateLayout layout, ExpertScales& to) {
  const operations::BlockScales& s = w.scales;
  if (s.data == nullptr) return;
  const bool interleaved = layout == device::GateLayout::interleaved;
  const auto bytes = static_cast<std::int64_t>(size_of(s.dtype));
  to.data = s.data;
  to.global = static_cast<const float*>(w.expert_scales.data), to.global_stride = w.expert_scales.stride;
  to.expert_stride = s.expert_stride * bytes, to.row_stride = s.row_stride * bytes;
  to.column_stride = s.column_stride * bytes;
  to.gate_rows = interleaved ? 1 : static_cast<std::int32_t>(w.rows / 2), to.value_rows = interleaved ? 2 : 1;
  to.row_blocks = static_cast<std::int32_t>(core::ceil_div(w.rows, s.block_rows));
  to.scale_bytes = static_cast<std::int32_t>(bytes);
  to.in_runs = lie_in_runs(to, w.num_experts);
}

template <typename Params>
void bind_layer(const MoeParams& call, Params& params) {
  params.gate_up_bias = gate_up_bias_of(call);
  params.down_bias = bias_of(call.down_bias);
  params.out = rows_of(call.out);
}

}  // namespace

void bind(const MoeParams& call, device::MoeSortParams& params) { params.topk_ids = ids_of(call.topk_ids); }

void bind(const MoeParams& call, device::MoeGatherParams& params) {
  params.topk_weights = weights_of(call.topk_weights);
  params.x = rows_of(call.x);
  if (params.cleared_columns > 0) params.cleared = rows_of(call.gate_up_out);
}

void bind(const MoeParams& call, device::MoeLayerParams& params) {
  bind_layer(call, params);
  if (params.saved_columns > 0) params.sums = rows_of(call.gate_up_out);
}

void bind(const MoeParams& call, device::MoeScaledParams& params) {
  if (is_first(params)) {
    const operations::BlockScales& x = call.x_scales;
    params.row_scales.data = static_cast<float*>(const_cast<void*>(x.data));
    params.row_scales.row_stride = x.row_stride, params.row_scales.column_stride = x.column_stride;
    bind_scales(call.gate_up, call.gate_layout, params.weight_scales);
    params.bias = gate_up_bias_of(call);
  } else {
    bind_scales(call.down, device::GateLayout::none, params.weight_scales);
    params.bias = bias_of(call.down_bias);
  }
}

void bind(const MoeParams& call, device::MoeCombineParams& params) { params.out = rows_of(call.out); }

void bind(const MoeParams& call, device::MoeDecodeParams& params) {
  params.topk_ids = ids_of(call.topk_ids);
  params.topk_weights = weights_of(call.topk_weights);
  params.x = rows_of(call.x);
  bind_scales(call.gate_up, call.gate_layout, params.gate_up_scales);
  bind_scales(call.down, device::GateLayout::none, params.down_scales);
  bind_layer(call, params);
}

void bind_dout(const MoeParams& call, device::MoeGatherParams& params) {
  params.topk_weights = weights_of(call.topk_weights);
  params.x = rows_of(call.dout);
}

void bind(const MoeParams& call, device::MoeSlopesParams& params) { params.gate_up_bias = gate_up_bias_of(call); }

void bind(const MoeParams& call, device::MoeSavedSlopesParams& params) {
  params.sums = rows_of(call.gate_up_out);
  params.gate_up_bias = gate_up_bias_of(call);
}

void bind(const MoeParams& call, device::MoeDweightsParams& params) {
  params.topk_ids = ids_of(call.topk_ids);
  params.down_bias = bias_of(call.down_bias);
  const Matrix& out = call.dtopk_weights;
  params.out = out.data, params.out_type = portable::bias_type_of(out.dtype);
  params.token_stride = out.row_stride, params.slot_stride = out.column_stride;
}

void bind(const MoeParams& call, device::MoeDwParams& params) {
  const ExpertMatrices& out = params.of_down != 0 ? call.ddown : call.dgate_up;
  params.out = out.data, params.expert_stride = out.expert_stride, params.row_stride = out.row_stride;
}

void bind_dx(const MoeParams& call, device::MoeCombineParams& params) { params.out = rows_of(call.dx); }

}  // namespace tilewise::backends::hopper
