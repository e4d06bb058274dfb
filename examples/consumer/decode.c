/* Decoding over a paged KV cache through the C interface: each step appends a token and attends to all so far. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tilewise/c/kv_cache.h"

enum { kHeadsQ = 4, kHeadsK = 2, kHeadDim = 16, kPages = 6, kPageSize = 4, kMaxPages = 3 };
enum { kPlaces = kMaxPages * kPageSize, kTokenElements = kHeadsK * kHeadDim };

static float q[kHeadsQ * kHeadDim], out[kHeadsQ * kHeadDim], k[kTokenElements], v[kTokenElements];
static float k_cache[kPages * kPageSize * kTokenElements], v_cache[kPages * kPageSize * kTokenElements];
static int32_t cache_seqlens[1], block_table[kMaxPages] = {5, 0, 3}; /* pages in any order */
static float before[sizeof k_cache / sizeof *k_cache];

static DLTensor tensor(void* data, DLDataTypeCode code, int rank, int64_t* shape) {
  DLTensor result = {0};
  result.data = data;
  result.device.device_type = kDLCPU;
  result.ndim = rank;
  result.dtype.code = (uint8_t)code;
  result.dtype.bits = 32;
  result.dtype.lanes = 1;
  result.shape = shape; /* no strides: contiguous */
  return result;
}

int main(void) {
  int64_t q_shape[] = {1, 1, kHeadsQ, kHeadDim}, new_shape[] = {1, 1, kHeadsK, kHeadDim};
  int64_t cache_shape[] = {kPages, kPageSize, kHeadsK, kHeadDim}, table_shape[] = {1, kMaxPages}, one[] = {1};
  const DLTensor q_tensor = tensor(q, kDLFloat, 4, q_shape), out_tensor = tensor(out, kDLFloat, 4, q_shape),
                 k_tensor = tensor(k, kDLFloat, 4, new_shape), v_tensor = tensor(v, kDLFloat, 4, new_shape),
                 keys = tensor(k_cache, kDLFloat, 4, cache_shape), values = tensor(v_cache, kDLFloat, 4, cache_shape),
                 lengths = tensor(cache_seqlens, kDLInt, 1, one), table = tensor(block_table, kDLInt, 2, table_shape);
  const tilewise_kv_cache_tensors tensors = {
      .q = &q_tensor, .k_cache = &keys, .v_cache = &values, .k = &k_tensor, .v = &v_tensor, .out = &out_tensor};

  tilewise_kv_cache_options options;
  if (tilewise_kv_cache_options_init(&options, sizeof options) != TILEWISE_OK) return 1;
  options.cache_seqlens = &lengths;
  options.block_table = &table;
  options.mask = TILEWISE_MASK_CAUSAL;

  for (int step = 0; step < kPlaces; ++step) {
    cache_seqlens[0] = step; /* tokens before this one */
    for (int i = 0; i < kTokenElements; ++i) v[i] = (float)step;
    if (tilewise_kv_cache_attention(&tensors, &options) != TILEWISE_OK) {
      fprintf(stderr, "%s\n", tilewise_last_error());
      return 1;
    }
    for (int i = 0; i < kHeadsQ * kHeadDim; ++i) { /* keys are all alike: the mean of 0 to step */
      if (!(fabsf(out[i] - 0.5f * (float)step) < 1e-5f)) return 1;
    }
  }

  memcpy(before, v_cache, sizeof v_cache);
  cache_seqlens[0] = kPlaces; /* there is no page for one more */
  if (tilewise_kv_cache_attention(&tensors, &options) != TILEWISE_INVALID_ARGUMENT) return 1;
  if (strncmp(tilewise_last_error(), "cache_seqlens[0]: ", 18) != 0) return 1;
  if (memcmp(before, v_cache, sizeof v_cache) != 0) return 1;
  printf("%d tokens decoded from C; one more says \"%s\"\n", kPlaces, tilewise_last_error());
  return 0;
}
