// The parameters of each kernel of merge: plain data, shape beside every pointer. The host's table of their pointers
// stands in backends/portable/merge/parameters.hpp.
#pragma once

#include "device/common/tensors.h"

namespace tilewise::device {

/// Parts that one launch has room for; stacked ones are any number.
inline constexpr int kMostParts = 16;

struct MergeShape {
  int64_t batch_size, seqlen_q, num_heads_q, head_dim_v;  // packed: a batch of one
};

/// The parts of a launch: parts[0] to parts[num_parts - 1], or slices of parts[0] so many elements apart.
struct PartRange {
  int64_t first_part, num_parts;  // of the call's
  int64_t rows_stride, lse_stride, drows_stride, dlse_stride;
  int32_t stacked, resumes, pauses;  // as MergeConfig has them
  int32_t turn;                      // 0 or 1: launches take turns with two places in the workspace
};

struct MergePart {
  Tensor4 out;
  LseTensor lse;
  int32_t type;    // PartType of out
  int32_t unused;  // keeps the block free of holes
};

struct MergeForwardParams {
  MergeShape shape;
  PartRange range;
  Tensor4 out;
  LseTensor softmax_lse;
  SinkTensor sink;
  int64_t out_type;  // PartType
  MergePart parts[kMostParts];
  // Between launches, rows in the order [batch, query, head]. lse_before is what the launch before wrote.
  float* out_accum;  // [rows, head_dim_v]
  const float* lse_before;
  float* lse_accum;  // [rows]
};

/// dots[part] = dout . out of each part, and their mean by weight, delta, beside the log-sum-exp.
struct MergeBwdPreprocessParams {
  MergeShape shape;
  PartRange range;
  Tensor4 dout;
  SinkTensor sink;
  int64_t out_type;       // PartType of dout
  int64_t parts_of_call;  // of all launches
  MergePart parts[kMostParts];
  const float *lse_before, *delta_before;  // what the launch before wrote, [rows]
  float *lse_accum, *delta;                // [rows]
  float* dots;                             // [parts, rows], of all parts of the call
};

struct MergeBwdPart {
  LseTensor lse, dlse;
  Tensor4 dout;
  int32_t type;    // PartType of dout
  int32_t unused;  // keeps the block free of holes
};

/// The gradients of the parts.
struct MergeBwdParams {
  MergeShape shape;
  PartRange range;
  Tensor4 dout;
  LseTensor dlse;
  int64_t out_type;       // PartType of dout
  int64_t parts_of_call;  // of all launches
  MergeBwdPart parts[kMostParts];
  const float *lse_accum, *delta, *dots;  // as MergeBwdPreprocessParams has them
};

/// dsink = sum over rows of exp(sink - lse) * (dlse - delta).
struct MergeBwdDsinkParams {
  MergeShape shape;
  LseTensor dlse;
  SinkTensor sink, dsink;
  int64_t turn;                    // of the last launch of MergeBwdPreprocess
  const float *lse_accum, *delta;  // as MergeBwdPreprocessParams has them
};

}  // namespace tilewise::device
