// The parameters of each kernel of merge: plain data, shape beside every pointer. The host's table of their pointers
// stands in backends/portable/merge/kernels.hpp.
#pragma once

#include "device/common/tensors.h"

namespace tilewise::device {

/// Parts that one launch has room for; stacked ones are any number.
inline constexpr int kMostParts = 16;

/// Of lse_accum, a row: see RowLse. A log-sum-exp in one number loses beside 1e9 what tells two parts from one.
inline constexpr int64_t kMergeLseNumbers = 2;

struct MergeShape {
  int64_t batch_size, seqlen_q, num_heads_q, head_dim_v;  // packed: a batch of one

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("batch_size", p.batch_size), visit("seqlen_q", p.seqlen_q), visit("num_heads_q", p.num_heads_q);
    visit("head_dim_v", p.head_dim_v);
  }
};

/// The parts of a launch: parts[0] to parts[num_parts - 1], or slices of parts[0] so many elements apart.
struct PartRange {
  int64_t first_part, num_parts;  // of the call's
  int64_t rows_stride, lse_stride, drows_stride, dlse_stride;
  int32_t stacked, resumes, pauses;  // as MergeConfig has them
  int32_t turn;                      // 0 or 1: launches take turns with two places in the workspace

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("first_part", p.first_part), visit("num_parts", p.num_parts), visit("rows_stride", p.rows_stride);
    visit("lse_stride", p.lse_stride), visit("drows_stride", p.drows_stride), visit("dlse_stride", p.dlse_stride);
    visit("stacked", p.stacked), visit("resumes", p.resumes), visit("pauses", p.pauses), visit("turn", p.turn);
  }
};

struct MergePart {
  Tensor4 out;
  LseTensor lse;
  int32_t type;    // PartType of out
  int32_t unused;  // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("out", p.out), visit("lse", p.lse), visit("type", p.type), visit("unused", p.unused);
  }
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
  float* lse_accum;  // [rows, kMergeLseNumbers]

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("range", p.range), visit("out", p.out), visit("softmax_lse", p.softmax_lse);
    visit("sink", p.sink), visit("out_type", p.out_type), visit("parts", p.parts), visit("out_accum", p.out_accum);
    visit("lse_before", p.lse_before), visit("lse_accum", p.lse_accum);
  }
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
  const float *lse_before, *delta_before;  // what the launch before wrote, as the next two
  float *lse_accum, *delta;                // [rows, kMergeLseNumbers] and [rows]
  float* dots;                             // [parts, rows], of all parts of the call

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("range", p.range), visit("dout", p.dout), visit("sink", p.sink);
    visit("out_type", p.out_type), visit("parts_of_call", p.parts_of_call), visit("parts", p.parts);
    visit("lse_before", p.lse_before), visit("delta_before", p.delta_before), visit("lse_accum", p.lse_accum);
    visit("delta", p.delta), visit("dots", p.dots);
  }
};

struct MergeBwdPart {
  LseTensor lse, dlse;
  Tensor4 dout;
  int32_t type;    // PartType of dout
  int32_t unused;  // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("lse", p.lse), visit("dlse", p.dlse), visit("dout", p.dout), visit("type", p.type);
    visit("unused", p.unused);
  }
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

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("range", p.range), visit("dout", p.dout), visit("dlse", p.dlse);
    visit("out_type", p.out_type), visit("parts_of_call", p.parts_of_call), visit("parts", p.parts);
    visit("lse_accum", p.lse_accum), visit("delta", p.delta), visit("dots", p.dots);
  }
};

/// dsink = sum over rows of exp(sink - lse) * (dlse - delta).
struct MergeBwdDsinkParams {
  MergeShape shape;
  LseTensor dlse;
  SinkTensor sink, dsink;
  int64_t turn;                    // of the last launch of MergeBwdPreprocess
  const float *lse_accum, *delta;  // as MergeBwdPreprocessParams has them

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("dlse", p.dlse), visit("sink", p.sink), visit("dsink", p.dsink);
    visit("turn", p.turn), visit("lse_accum", p.lse_accum), visit("delta", p.delta);
  }
};

}  // namespace tilewise::device
