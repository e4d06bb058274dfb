/* Attention in C. */
#ifndef TILEWISE_C_ATTENTION_H
#define TILEWISE_C_ATTENTION_H

#include "tilewise/c/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(readability-identifier-naming): C names carry their library's. */

/* Where the diagonal of masks, windows and ALiBi ends. */
typedef enum tilewise_alignment {
  TILEWISE_ALIGNMENT_BOTTOM_RIGHT = 0,
  TILEWISE_ALIGNMENT_TOP_LEFT = 1
} tilewise_alignment;

/* Options of an attention call. Fill with tilewise_attention_options_init(), then change
 * fields. A null tensor is not given. Later versions append fields; struct_size tells which
 * ones the caller knows. */
typedef struct tilewise_attention_options {
  size_t struct_size;
  int32_t layout;    /* tilewise_layout */
  int32_t mask;      /* tilewise_mask */
  int32_t alignment; /* tilewise_alignment */
  int32_t deterministic;
  int32_t batch_invariant;
  int32_t has_softmax_scale; /* 0: softmax_scale is 1/sqrt(head_dim) */
  double softmax_scale;
  double softcap;      /* 0: off */
  int64_t window_left; /* -1: unbounded */
  int64_t window_right;
  double dropout_p;
  uint64_t seed, offset;
  const DLTensor* seed_and_offset; /* int64 [2], instead of seed and offset */
  const DLTensor* bias;            /* broadcastable to [batch_size, num_heads_q, seqlen_q, seqlen_k] */
  const DLTensor* alibi_slopes;    /* f32 (f64 where q is) [num_heads_q] or [batch_size, num_heads_q] */
  const DLTensor* sink;            /* f32 or the dtype of q, [num_heads_q] */
  const DLTensor* cu_seqlens_q;    /* int32 [batch_size + 1], with TILEWISE_LAYOUT_THD */
  const DLTensor* cu_seqlens_k;
  int64_t max_seqlen_q; /* -1: computed; only with TILEWISE_LAYOUT_THD */
  int64_t max_seqlen_k;
  const DLTensor* seqused_q; /* int32 [batch_size] */
  const DLTensor* seqused_k;
  const DLTensor* leftpad_k;
  /* With q, k and v in fp8 e4m3: f32 of no dimension, [its heads] or [batch_size, num_heads_k], positive ... */
  const DLTensor *q_scale, *k_scale, *v_scale;
  double q_scale_value, k_scale_value, v_scale_value; /* ... or a positive number; 0: none */
  const char* implementation;                         /* by name; NULL: the cheapest that accepts the problem */
  int32_t clear_rest; /* with TILEWISE_LAYOUT_THD: rows that belong to no sequence become 0, their softmax_lse -inf */
  /* Texts of expressions (docs/expressions.md); NULL: none. mask_mod says whether a key is visible. */
  const char *score_mod, *mask_mod;
  const DLTensor* const* tables; /* what they look up, table0 and on */
  int64_t table_count;
  const DLTensor* const* dtables; /* backward: gradients of the tables, written; NULL, or a NULL for each not wanted */
  const DLTensor* key_indices; /* int32 [batch_size, seqlen_q, 1 or num_heads_k, top_k]: the only keys seen; -1: none */
  /* int32, which blocks of scores are visible: block_counts, block_indices and, where there are full ones,
   * full_block_counts and full_block_indices: see AttentionOptions::block_mask in problem.hpp. */
  const DLTensor* const* block_mask;
  int64_t block_mask_count;       /* 0, 2 or 4 */
  int64_t block_rows, block_keys; /* queries and keys of a block, multiples of 16 */
} tilewise_attention_options;

/* Sets every field to its default. Pass sizeof(tilewise_attention_options). */
TILEWISE_EXPORT tilewise_status tilewise_attention_options_init(tilewise_attention_options* options,
                                                                size_t struct_size);

/* Tensors of a forward pass. softmax_lse (f32, or f64 where q is) may be NULL. */
typedef struct tilewise_forward_tensors {
  const DLTensor *q, *k, *v;
  const DLTensor* out;         /* written */
  const DLTensor* softmax_lse; /* written */
} tilewise_forward_tensors;

/* Tensors of a backward pass. dlse and each written one may be NULL. */
typedef struct tilewise_backward_tensors {
  const DLTensor *dout, *dlse;
  const DLTensor *q, *k, *v, *out, *softmax_lse; /* as the forward pass took and wrote them */
  const DLTensor *dq, *dk, *dv, *dbias, *dsink;  /* written */
} tilewise_backward_tensors;

/* One call: describes, finds the cached plan and runs it, on a GPU on the legacy default stream.
 * options may be NULL: all defaults. */
TILEWISE_EXPORT tilewise_status tilewise_attention_forward(const tilewise_forward_tensors* tensors,
                                                           const tilewise_attention_options* options);
TILEWISE_EXPORT tilewise_status tilewise_attention_backward(const tilewise_backward_tensors* tensors,
                                                            const tilewise_attention_options* options);

/* Plans and problems of such calls. */
TILEWISE_EXPORT tilewise_status tilewise_plan_forward(const tilewise_forward_tensors* tensors,
                                                      const tilewise_attention_options* options, tilewise_plan** plan);
TILEWISE_EXPORT tilewise_status tilewise_plan_backward(const tilewise_backward_tensors* tensors,
                                                       const tilewise_attention_options* options, tilewise_plan** plan);

/* The tensors and options must describe the plan's problem; options->implementation was read
 * when planning and is not read again. workspace: at least tilewise_plan_workspace_size() bytes
 * aligned to 64 on the tensors' device, or NULL: memory that the thread keeps. stream: NULL on the
 * CPU; on a GPU a CUstream or hipStream_t, where NULL is the legacy default stream. */
TILEWISE_EXPORT tilewise_status tilewise_plan_run_forward(const tilewise_plan* plan,
                                                          const tilewise_forward_tensors* tensors,
                                                          const tilewise_attention_options* options, void* workspace,
                                                          void* stream);
TILEWISE_EXPORT tilewise_status tilewise_plan_run_backward(const tilewise_plan* plan,
                                                           const tilewise_backward_tensors* tensors,
                                                           const tilewise_attention_options* options, void* workspace,
                                                           void* stream);

/* The problem that tensors and options describe, as one line, for tilewise_free_text(). */
TILEWISE_EXPORT tilewise_status tilewise_describe_forward(const tilewise_forward_tensors* tensors,
                                                          const tilewise_attention_options* options, char** problem);
TILEWISE_EXPORT tilewise_status tilewise_describe_backward(const tilewise_backward_tensors* tensors,
                                                           const tilewise_attention_options* options, char** problem);

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_C_ATTENTION_H */
