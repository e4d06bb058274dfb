// The parameter blocks of merge's kernels, member by member, and what each of their pointers points to: the one table
// that workspaces, the emulation's memory checks and launch.json go by.
#pragma once

#include "backends/portable/tensors.hpp"
#include "device/merge/params.h"
#include "gpu/parameters.hpp"

#define TILEWISE_MERGE_SHAPE(X) X(batch_size), X(seqlen_q), X(num_heads_q), X(head_dim_v)
#define TILEWISE_PART_RANGE(X)                                                                                         \
  X(first_part), X(num_parts), X(rows_stride), X(lse_stride), X(drows_stride), X(dlse_stride), X(stacked), X(resumes), \
      X(pauses), X(turn)
#define TILEWISE_MERGE_PART(X) X(out), X(lse), X(type), X(unused)
#define TILEWISE_MERGE_BWD_PART(X) X(lse), X(dlse), X(dout), X(type), X(unused)
#define TILEWISE_MERGE_FORWARD_PARAMS(X) \
  X(shape), X(range), X(out), X(softmax_lse), X(sink), X(out_type), X(parts), X(out_accum), X(lse_before), X(lse_accum)
#define TILEWISE_MERGE_BWD_PREPROCESS_PARAMS(X)                                                                  \
  X(shape), X(range), X(dout), X(sink), X(out_type), X(parts_of_call), X(parts), X(lse_before), X(delta_before), \
      X(lse_accum), X(delta), X(dots)
#define TILEWISE_MERGE_BWD_PARAMS(X) \
  X(shape), X(range), X(dout), X(dlse), X(out_type), X(parts_of_call), X(parts), X(lse_accum), X(delta), X(dots)
#define TILEWISE_MERGE_BWD_DSINK_PARAMS(X) X(shape), X(dlse), X(sink), X(dsink), X(turn), X(lse_accum), X(delta)

TILEWISE_DESCRIBE(tilewise::device::MergeShape, TILEWISE_MERGE_SHAPE);
TILEWISE_DESCRIBE(tilewise::device::PartRange, TILEWISE_PART_RANGE);
TILEWISE_DESCRIBE(tilewise::device::MergePart, TILEWISE_MERGE_PART);
TILEWISE_DESCRIBE(tilewise::device::MergeBwdPart, TILEWISE_MERGE_BWD_PART);
TILEWISE_DESCRIBE(tilewise::device::MergeForwardParams, TILEWISE_MERGE_FORWARD_PARAMS);
TILEWISE_DESCRIBE(tilewise::device::MergeBwdPreprocessParams, TILEWISE_MERGE_BWD_PREPROCESS_PARAMS);
TILEWISE_DESCRIBE(tilewise::device::MergeBwdParams, TILEWISE_MERGE_BWD_PARAMS);
TILEWISE_DESCRIBE(tilewise::device::MergeBwdDsinkParams, TILEWISE_MERGE_BWD_DSINK_PARAMS);

namespace tilewise::backends::portable {

void for_each_pointer(const device::MergeForwardParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MergeBwdPreprocessParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MergeBwdParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MergeBwdDsinkParams& p, const gpu::RegionVisitor& visit);

}  // namespace tilewise::backends::portable
