/* A linear layer and a mixture of experts through the C interface, and what an error looks like. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tilewise/tilewise.h"

enum { kTokens = 5, kHidden = 32, kIntermediate = 16, kExperts = 3, kTopK = 2 };

static float x[kTokens * kHidden], out[kTokens * kHidden], rows[kTokens * kHidden], weights[kTokens * kTopK];
static float gate_up[kExperts * 2 * kIntermediate * kHidden], down[kExperts * kHidden * kIntermediate];
static float square[kHidden * kHidden];
static int64_t ids[kTokens * kTopK];

static DLTensor tensor(void* data, int64_t* shape, int rank, uint8_t code, uint8_t bits) {
  DLTensor result = {0};
  result.data = data;
  result.device.device_type = kDLCPU;
  result.ndim = rank;
  result.dtype.code = code;
  result.dtype.bits = bits;
  result.dtype.lanes = 1;
  result.shape = shape; /* no strides: contiguous */
  return result;
}

static int all_are(const float* values, float expected) {
  for (int i = 0; i < kTokens * kHidden; ++i) {
    if (!(fabsf(values[i] - expected) < 1e-5f)) return 0;
  }
  return 1;
}

int main(void) {
  /* Products of the weights with ones are 1, so an expert makes relu(1) * 1 = 1 of a token. */
  for (int i = 0; i < kTokens * kHidden; ++i) x[i] = 1.0f;
  for (int i = 0; i < kExperts * 2 * kIntermediate * kHidden; ++i) gate_up[i] = 1.0f / kHidden;
  for (int i = 0; i < kExperts * kHidden * kIntermediate; ++i) down[i] = 1.0f / kIntermediate;
  for (int i = 0; i < kHidden * kHidden; ++i) square[i] = 2.0f / kHidden;
  for (int i = 0; i < kTokens * kTopK; ++i) {
    ids[i] = i % kTopK == 0 ? i % kExperts : -1; /* -1: an expert that is somebody else's, which adds nothing */
    weights[i] = 1.0f;
  }
  int64_t token_shape[2] = {kTokens, kHidden}, routed_shape[2] = {kTokens, kTopK}, square_shape[2] = {kHidden, kHidden};
  int64_t gate_up_shape[3] = {kExperts, 2 * kIntermediate, kHidden}, down_shape[3] = {kExperts, kHidden, kIntermediate};
  const DLTensor x_tensor = tensor(x, token_shape, 2, kDLFloat, 32),
                 out_tensor = tensor(out, token_shape, 2, kDLFloat, 32);
  const DLTensor rows_tensor = tensor(rows, token_shape, 2, kDLFloat, 32);
  const DLTensor square_tensor = tensor(square, square_shape, 2, kDLFloat, 32);
  const DLTensor ids_tensor = tensor(ids, routed_shape, 2, kDLInt, 64);
  const DLTensor weights_tensor = tensor(weights, routed_shape, 2, kDLFloat, 32);
  const DLTensor gate_up_tensor = tensor(gate_up, gate_up_shape, 3, kDLFloat, 32);
  const DLTensor down_tensor = tensor(down, down_shape, 3, kDLFloat, 32);

  const tilewise_linear_tensors linear = {.x = &x_tensor, .w = &square_tensor, .out = &rows_tensor};
  const tilewise_moe_tensors moe = {.x = &x_tensor,
                                    .topk_ids = &ids_tensor,
                                    .topk_weights = &weights_tensor,
                                    .gate_up = &gate_up_tensor,
                                    .down = &down_tensor,
                                    .out = &out_tensor};
  tilewise_moe_options options;
  if (tilewise_moe_options_init(&options, sizeof options) != TILEWISE_OK) return 1;
  options.activation = "relu";
  if (tilewise_linear(&linear, NULL) != TILEWISE_OK || tilewise_moe(&moe, &options) != TILEWISE_OK) {
    fprintf(stderr, "%s\n", tilewise_last_error());
    return 1;
  }
  if (!all_are(rows, 2.0f) || !all_are(out, 1.0f)) return 1;

  options.activation = "relu6";
  if (tilewise_moe(&moe, &options) != TILEWISE_INVALID_ARGUMENT) return 1;
  if (strncmp(tilewise_last_error(), "activation: ", 12) != 0) return 1;
  printf("experts from C; a bad call says \"%s\"\n", tilewise_last_error());
  return 0;
}
