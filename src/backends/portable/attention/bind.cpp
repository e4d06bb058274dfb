// From the call to each kernel's block: the grid, the workspace and what goes with it stay as they are.
#include "backends/portable/attention/bind.hpp"

#include <algorithm>

#include "tilewise/tensor.hpp"

namespace tilewise::backends::portable {
namespace {

/// What kernels that see scores take.
template <typename Params>
void bind_scores(const device::AttendedRows& call, Params& params) {
  params.shape = call;
  params.score = call;
  params.q = call.q;
  params.k = call.k;
  params.v = call.v;
  params.softmax_lse = call.softmax_lse;
}

/// And those of the backward pass among them.
template <typename Params>
void bind_gradients(const device::AttentionParams& call, Params& params) {
  bind_scores(call, params);
  params.dout = call.dout;
}

}  // namespace

void bind_tables(const device::AttentionParams& call, std::span<device::ScoreTable, device::kMostTables> tables) {
  bind_tables(call.tables, tables);
}

void bind_tables(const TensorView* of_call, std::span<device::ScoreTable, device::kMostTables> tables) {
  for (std::size_t i = 0; i < tables.size(); ++i) {
    if (tables[i].element_bytes == 0 || tables[i].of_blocks != 0) continue;
    const TensorView& view = of_call[i];
    tables[i].data = view.data;
    std::copy_n(view.strides.begin(), view.rank, tables[i].strides);
  }
}

void bind(const device::AttendedRows& call, device::ForwardParams& params) {
  bind_scores(call, params);
  params.out = call.out;
  params.sink = call.sink;
  params.key_indices = call.key_indices;
}

void bind(const device::AttendedRows& call, device::CombineParams& params) {
  params.shape = call;
  params.out = call.out;
  params.softmax_lse = call.softmax_lse;
  params.sink = call.sink;
}

void bind_block_lists(const TensorView* block_mask, device::BlockStatesParams& params) {
  if (block_mask == nullptr) return;
  const TensorView &counts = block_mask[params.tensor], &indices = block_mask[params.tensor + 1];
  params.counts = static_cast<const std::int32_t*>(counts.data);
  params.indices = static_cast<const std::int32_t*>(indices.data);
  std::copy_n(counts.strides.begin(), std::size(params.count_strides), params.count_strides);
  std::copy_n(indices.strides.begin(), std::size(params.index_strides), params.index_strides);
}

void bind(const device::AttentionParams& call, device::MaskTilesParams& params) { params.shape = call; }

void bind(const device::AttentionParams& call, device::BwdPreprocessParams& params) {
  params.shape = call;
  params.out = call.out;
  params.dout = call.dout;
  params.dlse = call.dlse;
}

void bind(const device::AttentionParams& call, device::BwdDqParams& params) {
  bind_gradients(call, params);
  params.dq = call.dq;
  params.key_indices = call.key_indices;
}

void bind(const device::AttentionParams& call, device::BwdDkdvParams& params) {
  bind_gradients(call, params);
  params.dk = call.dk;
  params.dv = call.dv;
  params.key_indices = call.key_indices;
}

void bind(const device::AttentionParams& call, device::BwdParams& params) {
  bind_gradients(call, params);
  params.dk = call.dk;
  params.dv = call.dv;
}

void bind(const device::AttentionParams& call, device::BwdConvertDqParams& params) {
  params.shape = call;
  params.dq = call.dq;
  params.softmax_lse = call.softmax_lse;
  params.softmax_scale = call.softmax_scale;
}

void bind(const device::AttentionParams& call, device::BwdConvertDkdvParams& params) {
  params.shape = call;
  params.dk = call.dk;
  params.dv = call.dv;
  params.softmax_scale = call.softmax_scale;
}

void bind(const device::AttentionParams& call, device::BwdConvertSelectedParams& params) {
  params.shape = call;
  params.dk = call.dk;
  params.dv = call.dv;
  params.softmax_scale = call.softmax_scale;
}

void bind(const device::AttentionParams& call, device::BwdDbiasParams& params) {
  bind_gradients(call, params);
  params.dbias = call.dbias;
  for (int i = 0; i < 4; ++i) params.dbias_shape[i] = call.dbias_shape[i];
}

void bind(const device::AttentionParams& call, device::BwdDtableParams& params) { bind_gradients(call, params); }

void bind(const device::AttentionParams& call, device::BwdTableSumsParams& params) {
  params.shape = call;
  if (params.element_bytes == 0) return;  // which clears
  const TensorView& gradient = call.dtables[params.table];
  params.to = gradient.data;
  std::copy_n(gradient.strides.begin(), gradient.rank, params.strides);
}

void bind(const device::AttentionParams& call, device::BwdDsinkParams& params) {
  params.shape = call;
  params.softmax_lse = call.softmax_lse;
  params.sink = call.sink;
  params.dsink = call.dsink;
}

void bind(const device::AttentionParams& call, device::ClearRestParams& params) {
  params.shape = call;
  if (params.backward) {  // which is given out and softmax_lse
    params.dq = call.dq;
    params.dk = call.dk;
    params.dv = call.dv;
    return;
  }
  params.out = call.out;
  params.softmax_lse = call.softmax_lse;
}

}  // namespace tilewise::backends::portable
