/* The C interface of Tilewise, over DLPack tensors. Every function that can fail returns a
 * tilewise_status and keeps a sentence for tilewise_last_error(); no exception ever leaves.
 * The meaning of every operation and option: docs/semantics.md. */
#ifndef TILEWISE_TILEWISE_H
#define TILEWISE_TILEWISE_H

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#include "tilewise/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(readability-identifier-naming): C names carry their library's. */

typedef enum tilewise_status {
  TILEWISE_OK = 0,
  TILEWISE_INVALID_ARGUMENT = 1, /* a value is out of range or contradicts another */
  TILEWISE_INVALID_TYPE = 2,     /* wrong dtype or device */
  TILEWISE_UNSUPPORTED = 3,      /* no implementation accepts the problem */
  TILEWISE_RUNTIME_ERROR = 4     /* the system failed: memory, driver */
} tilewise_status;

/* Order of a tensor's dimensions: batch, sequence, head, dim; THD is packed, [total, head, dim]. */
typedef enum tilewise_layout {
  TILEWISE_LAYOUT_BSHD = 0,
  TILEWISE_LAYOUT_SBHD = 1,
  TILEWISE_LAYOUT_BHSD = 2,
  TILEWISE_LAYOUT_THD = 3
} tilewise_layout;

typedef enum tilewise_mask { TILEWISE_MASK_NONE = 0, TILEWISE_MASK_CAUSAL = 1 } tilewise_mask;

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
  const char* implementation; /* by name; NULL: the cheapest that accepts the problem */
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

/* A plan decides everything that does not depend on the data: implementation, schedule,
 * workspace; on a GPU for one device. Immutable; any number of threads may run it at once. */
typedef struct tilewise_plan tilewise_plan;

TILEWISE_EXPORT tilewise_status tilewise_plan_forward(const tilewise_forward_tensors* tensors,
                                                      const tilewise_attention_options* options, tilewise_plan** plan);
TILEWISE_EXPORT tilewise_status tilewise_plan_backward(const tilewise_backward_tensors* tensors,
                                                       const tilewise_attention_options* options, tilewise_plan** plan);
/* From problem text, on a GPU for the thread's current device; implementation may be NULL. */
TILEWISE_EXPORT tilewise_status tilewise_plan_problem(const char* problem, const char* implementation,
                                                      tilewise_plan** plan);

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
TILEWISE_EXPORT tilewise_status tilewise_plan_workspace_size(const tilewise_plan* plan, size_t* size);
/* The chosen implementation's name; lives as long as the program. */
TILEWISE_EXPORT tilewise_status tilewise_plan_implementation(const tilewise_plan* plan, const char** name);
/* NULL is allowed. */
TILEWISE_EXPORT void tilewise_plan_destroy(tilewise_plan* plan);

/* Texts below are allocated for the caller, who returns them to tilewise_free_text(). */

/* The problem that tensors and options describe, as one line. */
TILEWISE_EXPORT tilewise_status tilewise_describe_forward(const tilewise_forward_tensors* tensors,
                                                          const tilewise_attention_options* options, char** problem);
TILEWISE_EXPORT tilewise_status tilewise_describe_backward(const tilewise_backward_tensors* tensors,
                                                           const tilewise_attention_options* options, char** problem);
/* Parses and validates problem text and returns its normal form. */
TILEWISE_EXPORT tilewise_status tilewise_parse_problem(const char* problem, char** normal_form);
/* A table of every implementation with its verdict, estimate and reason. */
TILEWISE_EXPORT tilewise_status tilewise_explain(const char* problem, const char* implementation, char** table);
/* NULL is allowed. */
TILEWISE_EXPORT void tilewise_free_text(char* text);

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

/* Options of a KV cache step. Fill with tilewise_kv_cache_options_init(), then change fields. A null tensor is not
 * given. Later versions append fields; struct_size tells which ones the caller knows. */
typedef struct tilewise_kv_cache_options {
  size_t struct_size;
  const DLTensor *rotary_cos, *rotary_sin; /* f32 or the dtype of q, [rows, rotary_dim / 2] */
  const DLTensor* rotary_seqlens;          /* int32 [batch_size] */
  int64_t rotary_offset;
  int32_t rotary_interleaved;
  int32_t mask;                    /* tilewise_mask */
  const DLTensor* cache_seqlens;   /* int32 [batch_size] ... */
  int64_t cache_seqlen;            /* ... or one number for all; -1: none */
  const DLTensor* cache_batch_idx; /* int32 [batch_size]; contiguous caches */
  const DLTensor* cache_leftpad;   /* int32 [batch_size]; contiguous caches */
  const DLTensor* block_table;     /* int32 [batch_size, max_pages_per_seq]; the caches are paged then */
  const DLTensor* slots;           /* of tilewise_append_kv: int32 or int64, one for each new token */
  const DLTensor* cu_seqlens_q;    /* int32 [batch_size + 1]; q and the new keys are packed then */
  const DLTensor* cu_seqlens_k_new;
  int64_t max_seqlen_q; /* -1: total_q */
  int64_t max_seqlen_k_new;
  int64_t head_dim_v;                  /* without a v_cache; -1: not given */
  const DLTensor *k_scale, *v_scale;   /* f32 ... */
  double k_scale_value, v_scale_value; /* ... or one number; 0: none */
  int32_t has_softmax_scale;           /* 0: softmax_scale is 1/sqrt(head_dim) */
  int32_t batch_invariant;
  double softmax_scale;
  double softcap;      /* 0: off */
  int64_t window_left; /* -1: unbounded */
  int64_t window_right;
  const DLTensor* alibi_slopes; /* f32 [num_heads_q] or [batch_size, num_heads_q] */
  const DLTensor* sink;         /* f32 or the dtype of q, [num_heads_q] */
  int64_t num_splits;           /* 0: chosen */
  const char* implementation;   /* by name; NULL: the cheapest that accepts the problem */
} tilewise_kv_cache_options;

/* Sets every field to its default. Pass sizeof(tilewise_kv_cache_options). */
TILEWISE_EXPORT tilewise_status tilewise_kv_cache_options_init(tilewise_kv_cache_options* options, size_t struct_size);

/* Tensors of a step. k and v: new keys and values, or NULL. v_cache NULL: values are columns of the keys. caches, and
 * scales per token, are changed in place where k is given. */
typedef struct tilewise_kv_cache_tensors {
  const DLTensor* q; /* NULL in tilewise_append_kv, as are out and softmax_lse */
  const DLTensor *k_cache, *v_cache;
  const DLTensor *k, *v;
  const DLTensor* out;         /* written */
  const DLTensor* softmax_lse; /* written; may be NULL */
} tilewise_kv_cache_tensors;

/* As tilewise_attention_forward(), its plans and its problem; options may be NULL. */
TILEWISE_EXPORT tilewise_status tilewise_kv_cache_attention(const tilewise_kv_cache_tensors* tensors,
                                                            const tilewise_kv_cache_options* options);
TILEWISE_EXPORT tilewise_status tilewise_append_kv(const tilewise_kv_cache_tensors* tensors,
                                                   const tilewise_kv_cache_options* options);
TILEWISE_EXPORT tilewise_status tilewise_plan_kv_cache_attention(const tilewise_kv_cache_tensors* tensors,
                                                                 const tilewise_kv_cache_options* options,
                                                                 tilewise_plan** plan);
TILEWISE_EXPORT tilewise_status tilewise_plan_append_kv(const tilewise_kv_cache_tensors* tensors,
                                                        const tilewise_kv_cache_options* options, tilewise_plan** plan);
TILEWISE_EXPORT tilewise_status tilewise_plan_run_kv_cache_attention(const tilewise_plan* plan,
                                                                     const tilewise_kv_cache_tensors* tensors,
                                                                     const tilewise_kv_cache_options* options,
                                                                     void* workspace, void* stream);
TILEWISE_EXPORT tilewise_status tilewise_plan_run_append_kv(const tilewise_plan* plan,
                                                            const tilewise_kv_cache_tensors* tensors,
                                                            const tilewise_kv_cache_options* options, void* workspace,
                                                            void* stream);

/* CPU threads of the calls that follow; 0 restores the default, the processors this process may use. Never more than
 * TILEWISE_NUM_THREADS, and get says what the next call uses at most. Results do not depend on it. */
TILEWISE_EXPORT tilewise_status tilewise_set_num_threads(int num_threads);
TILEWISE_EXPORT tilewise_status tilewise_get_num_threads(int* num_threads);

/* The sentence of this thread's last failure ("" where there was none); valid until the next one. */
TILEWISE_EXPORT const char* tilewise_last_error(void);
/* "major.minor.patch" */
TILEWISE_EXPORT const char* tilewise_version(void);

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_TILEWISE_H */
