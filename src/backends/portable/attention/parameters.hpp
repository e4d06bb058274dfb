// The parameter blocks of the attention kernels, member by member, and what each of their pointers points to: the one
// table that workspaces, the emulation's memory checks and launch.json go by.
#pragma once

#include "backends/portable/tensors.hpp"
#include "device/attention/params.h"
#include "gpu/parameters.hpp"

#define TILEWISE_ATTENTION_SHAPE(X)                                                                                \
  X(batch_size), X(seqlen_q), X(seqlen_k), X(num_heads_q), X(num_heads_k), X(head_dim), X(head_dim_v), X(total_q), \
      X(total_k), X(cu_seqlens_q), X(cu_seqlens_k), X(seqused_q), X(seqused_k), X(leftpad_k)
#define TILEWISE_SCORE_PARAMS(X)                                                                                      \
  X(window_left), X(window_right), X(top_left), X(bias_type), X(softmax_scale), X(softcap), X(bias), X(alibi_slopes), \
      X(alibi_batch_stride), X(alibi_head_stride), X(dropout_threshold), X(dropout_scale), X(seed), X(offset),        \
      X(seed_and_offset), X(seed_and_offset_stride)
#define TILEWISE_TILE_GRID(X) X(num_tiles), X(num_splits), X(num_heads), X(unused)
#define TILEWISE_FORWARD_PARAMS(X) \
  X(shape), X(score), X(q), X(k), X(v), X(out), X(softmax_lse), X(sink), X(grid), X(out_accum), X(lse_accum)
#define TILEWISE_COMBINE_PARAMS(X) \
  X(shape), X(out), X(softmax_lse), X(sink), X(grid), X(num_splits), X(out_accum), X(lse_accum)
#define TILEWISE_BWD_PREPROCESS_PARAMS(X) \
  X(shape), X(out), X(dout), X(dlse), X(grid), X(delta), X(dq_accum), X(dq_accum_a_head)
#define TILEWISE_BWD_DQ_PARAMS(X) \
  X(shape), X(score), X(q), X(k), X(v), X(dout), X(dq), X(softmax_lse), X(grid), X(delta)
#define TILEWISE_BWD_DKDV_PARAMS(X) \
  X(shape), X(score), X(q), X(k), X(v), X(dout), X(dk), X(dv), X(softmax_lse), X(grid), X(delta)
#define TILEWISE_BWD_PARAMS(X)                                                                                 \
  X(shape), X(score), X(q), X(k), X(v), X(dout), X(dk), X(dv), X(softmax_lse), X(grid), X(delta), X(dq_accum), \
      X(dq_accum_a_head), X(dk_accum), X(dv_accum), X(dk_accum_a_block), X(dv_accum_a_block)
#define TILEWISE_BWD_CONVERT_DQ_PARAMS(X) \
  X(shape), X(dq), X(softmax_lse), X(grid), X(dq_accum), X(dq_accum_a_head), X(softmax_scale), X(unused)
#define TILEWISE_BWD_CONVERT_DKDV_PARAMS(X)                                                                           \
  X(shape), X(dk), X(dv), X(grid), X(num_splits), X(dk_accum), X(dv_accum), X(dk_accum_a_block), X(dv_accum_a_block), \
      X(softmax_scale), X(unused)
#define TILEWISE_BWD_DBIAS_PARAMS(X) \
  X(shape), X(score), X(q), X(k), X(v), X(dout), X(softmax_lse), X(delta), X(dbias), X(dbias_shape)
#define TILEWISE_BWD_DSINK_PARAMS(X) X(shape), X(softmax_lse), X(sink), X(dsink), X(delta)

TILEWISE_DESCRIBE(tilewise::device::AttentionShape, TILEWISE_ATTENTION_SHAPE);
TILEWISE_DESCRIBE(tilewise::device::ScoreParams, TILEWISE_SCORE_PARAMS);
TILEWISE_DESCRIBE(tilewise::device::TileGrid, TILEWISE_TILE_GRID);
TILEWISE_DESCRIBE(tilewise::device::ForwardParams, TILEWISE_FORWARD_PARAMS);
TILEWISE_DESCRIBE(tilewise::device::CombineParams, TILEWISE_COMBINE_PARAMS);
TILEWISE_DESCRIBE(tilewise::device::BwdPreprocessParams, TILEWISE_BWD_PREPROCESS_PARAMS);
TILEWISE_DESCRIBE(tilewise::device::BwdDqParams, TILEWISE_BWD_DQ_PARAMS);
TILEWISE_DESCRIBE(tilewise::device::BwdDkdvParams, TILEWISE_BWD_DKDV_PARAMS);
TILEWISE_DESCRIBE(tilewise::device::BwdParams, TILEWISE_BWD_PARAMS);
TILEWISE_DESCRIBE(tilewise::device::BwdConvertDqParams, TILEWISE_BWD_CONVERT_DQ_PARAMS);
TILEWISE_DESCRIBE(tilewise::device::BwdConvertDkdvParams, TILEWISE_BWD_CONVERT_DKDV_PARAMS);
TILEWISE_DESCRIBE(tilewise::device::BwdDbiasParams, TILEWISE_BWD_DBIAS_PARAMS);
TILEWISE_DESCRIBE(tilewise::device::BwdDsinkParams, TILEWISE_BWD_DSINK_PARAMS);

namespace tilewise::backends::portable {

using gpu::RegionVisitor;

void for_each_pointer(const device::ForwardParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::CombineParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdPreprocessParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdDqParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdDkdvParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdConvertDqParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdConvertDkdvParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdDbiasParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdDsinkParams& p, const RegionVisitor& visit);

}  // namespace tilewise::backends::portable
