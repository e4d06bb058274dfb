/* The KV cache step in C. */
#ifndef TILEWISE_C_KV_CACHE_H
#define TILEWISE_C_KV_CACHE_H

#include "tilewise/c/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(readability-identifier-naming): C names carry their library's. */

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
  /* As tilewise_attention_options has them, but of positions: q_idx is the key that the query stands at. */
  const char *score_mod, *mask_mod;
  const DLTensor* const* tables;
  int64_t table_count;
  const DLTensor* key_indices; /* as tilewise_attention_options has them */
  /* Likewise, but of positions: blocks are of as many places as the cache has of a sequence, both ways. */
  const DLTensor* const* block_mask;
  int64_t block_mask_count;
  int64_t block_rows, block_keys;
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

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_C_KV_CACHE_H */
