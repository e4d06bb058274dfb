// The tensors of a merge call in each kernel's block: of the parts those that the block's range says.
#pragma once

#include "device/merge/params.h"
#include "operations/merge/params.hpp"

namespace tilewise::backends::portable {

void bind(const operations::merge::MergeParams& call, device::MergeForwardParams& params);
void bind(const operations::merge::MergeParams& call, device::MergeBwdPreprocessParams& params);
void bind(const operations::merge::MergeParams& call, device::MergeBwdParams& params);
void bind(const operations::merge::MergeParams& call, device::MergeBwdDsinkParams& params);

/// PartType of an element type that GPUs have.
[[nodiscard]] std::int32_t part_type_of(DType dtype);

}  // namespace tilewise::backends::portable
