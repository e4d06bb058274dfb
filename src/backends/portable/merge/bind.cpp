// From the call to each kernel's block: range, sizes and workspace stay as they are.
#include "backends/portable/merge/kernels.hpp"

#include <cstddef>

#include "device/merge/config.h"

namespace tilewise::backends::portable {
namespace {

using operations::merge::MergeParams, operations::merge::Part;

std::int32_t sink_type_of(DType dtype) {
  return dtype == DType::bf16 ? device::kBiasBf16 : dtype == DType::f16 ? device::kBiasF16 : device::kBiasF32;
}
device::SinkTensor sink_of(const MergeParams& call) {
  return {const_cast<void*>(call.sink), call.sink_stride, sink_type_of(call.sink_dtype), 0};
}

template <typename Params>
void bind_strides(const MergeParams& call, Params& params) {
  params.range.rows_stride = call.stacked.out;
  params.range.lse_stride = call.stacked.lse;
  params.range.drows_stride = call.stacked.dout;
  params.range.dlse_stride = call.stacked.dlse;
}

/// Calls visit(part of the call, entry of the table) for each entry.
template <typename Params, typename Visit>
void for_each_entry(const MergeParams& call, Params& params, const Visit& visit) {
  const auto count = static_cast<std::size_t>(params.range.stacked != 0 ? 1 : params.range.num_parts);
  const auto first = static_cast<std::size_t>(params.range.first_part);
  for (std::size_t n = 0; n < count; ++n) visit(call.parts[first + n], params.parts[n]);
}

void bind_part(const Part& part, device::MergePart& entry) {
  entry = {part.out, part.lse, part_type_of(part.dtype), 0};
}

}  // namespace

std::int32_t part_type_of(DType dtype) {
  return dtype == DType::bf16 ? device::kPartBf16 : dtype == DType::f16 ? device::kPartF16 : device::kPartF32;
}

void bind(const MergeParams& call, device::MergeForwardParams& params) {
  bind_strides(call, params);
  for_each_entry(call, params, bind_part);
  params.out = call.out;
  params.softmax_lse = call.softmax_lse;
  params.sink = sink_of(call);
}

void bind(const MergeParams& call, device::MergeBwdPreprocessParams& params) {
  bind_strides(call, params);
  for_each_entry(call, params, bind_part);
  params.dout = call.dout;
  params.sink = sink_of(call);
}

void bind(const MergeParams& call, device::MergeBwdParams& params) {
  bind_strides(call, params);
  for_each_entry(call, params, [](const Part& part, device::MergeBwdPart& entry) {
    entry = {part.lse, part.dlse, part.dout, part_type_of(part.dtype), 0};
  });
  params.dout = call.dout;
  params.dlse = call.dlse;
}

void bind(const MergeParams& call, device::MergeBwdDsinkParams& params) {
  params.dlse = call.dlse;
  params.sink = sink_of(call);
  params.dsink = {call.dsink, call.dsink_stride, sink_type_of(call.sink_dtype), 0};
}

}  // namespace tilewise::backends::portable
