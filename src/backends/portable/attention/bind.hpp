// What only a call knows, put into the parameter blocks of its kernels.
#pragma once

#include <span>

#include "device/attention/params.h"

namespace tilewise::backends::portable {

// Of any operation that attends.
void bind(const device::AttendedRows& call, device::ForwardParams& params);
void bind(const device::AttendedRows& call, device::CombineParams& params);

/// Tables: of those that the problem has (element_bytes is set), where they lie.
void bind_tables(const TensorView* of_call, std::span<device::ScoreTable, device::kMostTables> tables);
void bind_tables(const device::AttentionParams& call, std::span<device::ScoreTable, device::kMostTables> tables);

/// Of a block mask's tensors, if there are some, the two that params.tensor names.
void bind_block_lists(const TensorView* block_mask, device::BlockStatesParams& params);
inline void bind(const device::AttentionParams& call, device::BlockStatesParams& params) {
  bind_block_lists(call.block_mask, params);
}

void bind(const device::AttentionParams& call, device::MaskTilesParams& params);
void bind(const device::AttentionParams& call, device::BwdPreprocessParams& params);
void bind(const device::AttentionParams& call, device::BwdDqParams& params);
void bind(const device::AttentionParams& call, device::BwdDkdvParams& params);
void bind(const device::AttentionParams& call, device::BwdParams& params);
void bind(const device::AttentionParams& call, device::BwdConvertDqParams& params);
void bind(const device::AttentionParams& call, device::BwdConvertDkdvParams& params);
void bind(const device::AttentionParams& call, device::BwdConvertSelectedParams& params);
void bind(const device::AttentionParams& call, device::BwdDbiasParams& params);
void bind(const device::AttentionParams& call, device::BwdDtableParams& params);
void bind(const device::AttentionParams& call, device::BwdTableSumsParams& params);
void bind(const device::AttentionParams& call, device::BwdDsinkParams& params);
void bind(const device::AttentionParams& call, device::ClearRestParams& params);

}  // namespace tilewise::backends::portable
