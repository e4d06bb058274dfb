/* Whole layers of experts in C: routed tokens to their weighted sums. */
#ifndef TILEWISE_C_MOE_H
#define TILEWISE_C_MOE_H

#include "tilewise/c/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(readability-identifier-naming): C names carry their library's. */

/* Options of a layer of experts. Fill with tilewise_moe_options_init(), then change fields. Later versions append
 * fields; struct_size tells which ones the caller knows. */
typedef struct tilewise_moe_options {
  size_t struct_size;
  const char *x_format, *w_format, *h_format; /* "fp8_row", "mxfp4", ...; NULL: not quantised */
  const char* gate;                           /* "none", "concatenated" or "interleaved"; NULL: concatenated */
  const char* activation;                     /* "identity", "silu", "gelu", ..., "swiglu_oai"; NULL: silu */
  const char* clamp;                          /* "before" or "after"; NULL: none */
  const char* implementation;                 /* by name; NULL: the cheapest that accepts the problem */
  double alpha;                               /* of swiglu_oai; 1.702 */
  double limit;                               /* of the clamp; 0 */
  double norm_epsilon;                        /* 1e-6 */
  int64_t first_expert;                       /* the id of the first expert whose weights are given; 0 */
  int32_t weight_on_input;                    /* topk_weights multiply x instead */
  int32_t batch_invariant;                    /* a token's result does not depend on which other tokens there are */
  int32_t save_gate_up;                       /* gate_up_out is written, and read by the backward pass */
} tilewise_moe_options;

/* Sets every field to its default. Pass sizeof(tilewise_moe_options). */
TILEWISE_EXPORT tilewise_status tilewise_moe_options_init(tilewise_moe_options* options, size_t struct_size);

/* Tensors of the forward pass. Shapes and dtypes: tilewise/moe.hpp. Biases, norm_weight and scales may be NULL. */
typedef struct tilewise_moe_tensors {
  const DLTensor *x, *topk_ids, *topk_weights;
  const DLTensor *gate_up, *down;
  const DLTensor *gate_up_bias, *down_bias, *norm_weight;
  const DLTensor *x_scale, *gate_up_scale, *down_scale;
  const DLTensor *gate_up_global_scale, *down_global_scale;
  const DLTensor* out;         /* written */
  const DLTensor* gate_up_out; /* looked at with save_gate_up alone, written */
} tilewise_moe_tensors;

/* Tensors of the backward pass. Those from dx to ddown_bias are written; each may be NULL. */
typedef struct tilewise_moe_backward_tensors {
  const DLTensor* dout;
  const DLTensor *x, *topk_ids, *topk_weights; /* as the forward pass took them */
  const DLTensor *gate_up, *down;
  const DLTensor *gate_up_bias, *down_bias;
  const DLTensor *gate_up_scale, *down_scale;
  const DLTensor *gate_up_global_scale, *down_global_scale;
  const DLTensor *dx, *dtopk_weights;
  const DLTensor *dgate_up, *ddown;
  const DLTensor *dgate_up_bias, *ddown_bias;
  const DLTensor* gate_up_out; /* looked at with save_gate_up alone, as the forward pass wrote it */
} tilewise_moe_backward_tensors;

/* options may be NULL. */
TILEWISE_EXPORT tilewise_status tilewise_moe(const tilewise_moe_tensors* tensors, const tilewise_moe_options* options);
TILEWISE_EXPORT tilewise_status tilewise_moe_backward(const tilewise_moe_backward_tensors* tensors,
                                                      const tilewise_moe_options* options);

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_C_MOE_H */
