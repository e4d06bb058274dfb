/* Attention through the C interface, and what an error looks like. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tilewise/tilewise.h"

enum { kSeqlen = 32, kHeads = 2, kHeadDim = 16, kElements = kSeqlen * kHeads * kHeadDim };

static float q[kElements], k[kElements], v[kElements], out[kElements];
static int64_t shape[4] = {1, kSeqlen, kHeads, kHeadDim};

static DLTensor tensor(float* data) {
  DLTensor result = {0};
  result.data = data;
  result.device.device_type = kDLCPU;
  result.ndim = 4;
  result.dtype.code = kDLFloat;
  result.dtype.bits = 32;
  result.dtype.lanes = 1;
  result.shape = shape; /* no strides: contiguous */
  return result;
}

int main(void) {
  for (int i = 0; i < kElements; ++i) {
    q[i] = sinf(0.1f * (float)i);
    k[i] = cosf(0.1f * (float)i);
    v[i] = 1.0f; /* rows of a softmax sum to 1, so 1 must come out */
  }
  const DLTensor q_tensor = tensor(q), k_tensor = tensor(k), v_tensor = tensor(v), out_tensor = tensor(out);
  const tilewise_forward_tensors tensors = {.q = &q_tensor, .k = &k_tensor, .v = &v_tensor, .out = &out_tensor};

  tilewise_attention_options options;
  if (tilewise_attention_options_init(&options, sizeof options) != TILEWISE_OK) return 1;
  options.mask = TILEWISE_MASK_CAUSAL;
  if (tilewise_attention_forward(&tensors, &options) != TILEWISE_OK) {
    fprintf(stderr, "%s\n", tilewise_last_error());
    return 1;
  }
  for (int i = 0; i < kElements; ++i) {
    if (!(fabsf(out[i] - 1.0f) < 1e-5f)) return 1;
  }

  options.window_right = 3; /* contradicts the causal mask */
  if (tilewise_attention_forward(&tensors, &options) != TILEWISE_INVALID_ARGUMENT) return 1;
  if (strncmp(tilewise_last_error(), "window_right: ", 14) != 0) return 1;
  printf("tilewise %s from C; a bad call says \"%s\"\n", tilewise_version(), tilewise_last_error());
  return 0;
}
