/* Merging partial results of attention in C. */
#ifndef TILEWISE_C_MERGE_H
#define TILEWISE_C_MERGE_H

#include "tilewise/c/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(readability-identifier-naming): C names carry their library's. */

/* Merges `count` partial results over disjoint keys, computed without the sink; or with count 1 the parts of one
 * tensor outs[0] [parts, ...] and one lses[0] [parts, ...]. sink and softmax_lse may be NULL. */
TILEWISE_EXPORT tilewise_status tilewise_merge(const DLTensor* const* outs, const DLTensor* const* lses, size_t count,
                                               const DLTensor* sink, const DLTensor* out, const DLTensor* softmax_lse,
                                               tilewise_layout layout);

/* Tensors of merge's backward pass. dlse, sink and each written one may be NULL. */
typedef struct tilewise_merge_backward_tensors {
  const DLTensor *dout, *dlse;
  const DLTensor *const *outs, *const *lses; /* as the forward pass took them */
  size_t count;                              /* of each list */
  const DLTensor* sink;
  const DLTensor *const *douts, *const *dlses; /* written */
  const DLTensor* dsink;                       /* written */
} tilewise_merge_backward_tensors;

TILEWISE_EXPORT tilewise_status tilewise_merge_backward(const tilewise_merge_backward_tensors* tensors,
                                                        tilewise_layout layout);

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_C_MERGE_H */
