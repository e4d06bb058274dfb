// What only a call knows, put into the parameter blocks of its kernels.
#pragma once

#include <span>

#include "device/attention/params.h"

namespace tilewise::backends::portable {

// Of any operation that attends.
void bind(const device::AttendedRows& call, device::ForwardParams& params);
void bind(const device::AttendedRows& call, device::CombineParams& params);

/// Tables: of those that the problem has (element_bytes is set), where they lie.
void bind_tables(const device::AttentionParams& call, std::span<device::ScoreTable, device::kMostTables> tables);

void bind(const device::AttentionParams& call, device::MaskTilesParams& params);
void bind(const device::AttentionParams& call, device::BwdPreprocessParams& params);
void bind(const device::AttentionParams& call, device::BwdDqParams& params);
void bind(const device::AttentionParams& call, device::BwdDkdvParams& params);
void bind(const device::AttentionParams& call, device::BwdParams& params);
void bind(const device::AttentionParams& call, device::BwdConvertDqParams& params);
void bind(const device::AttentionParams& call, device::BwdConvertDkdvParams& params);
void bind(const device::AttentionParams& call, device::BwdDbiasParams& params);
void bind(const device::AttentionParams& call, device::BwdDsinkParams& params);
void bind(const device::AttentionParams& call, device::ClearRestParams& params);

}  // namespace tilewise::backends::portable
