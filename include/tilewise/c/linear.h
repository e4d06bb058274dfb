/* Linear layers in C: of all rows, or of rows by expert. */
#ifndef TILEWISE_C_LINEAR_H
#define TILEWISE_C_LINEAR_H

#include "tilewise/c/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(readability-identifier-naming): C names carry their library's. */

/* Options of a linear layer. Fill with tilewise_linear_options_init(), then change fields. Later versions append
 * fields; struct_size tells which ones the caller knows. */
typedef struct tilewise_linear_options {
  size_t struct_size;
  const char *x_format, *w_format; /* "fp8_row", "mxfp4", ...; NULL: not quantised */
  const char* activation;          /* "silu", "gelu", "gelu_tanh", "relu", "relu_squared"; NULL: none */
  const char* implementation;      /* by name; NULL: the cheapest that accepts the problem */
  int32_t batch_invariant;         /* a row's result does not depend on which other rows there are */
} tilewise_linear_options;

/* Sets every field to its default. Pass sizeof(tilewise_linear_options). */
TILEWISE_EXPORT tilewise_status tilewise_linear_options_init(tilewise_linear_options* options, size_t struct_size);

/* Tensors of out = activation(x w' + bias). With offsets or counts of rows, each expert's rows have weights of their
 * own, w [num_experts, n, k]. Shapes and dtypes: tilewise/linear.hpp. All but x, w and out may be NULL. */
typedef struct tilewise_linear_tensors {
  const DLTensor *x, *w, *bias;
  const DLTensor *x_scale, *w_scale, *w_global_scale;
  const DLTensor *offsets, *counts; /* one of them at most */
  const DLTensor* out;              /* written */
} tilewise_linear_tensors;

/* Tensors of the backward pass. dx, dw and dbias are written; each may be NULL. */
typedef struct tilewise_linear_backward_tensors {
  const DLTensor* dout;
  const DLTensor *x, *w, *bias; /* as the forward pass took them */
  const DLTensor *w_scale, *w_global_scale;
  const DLTensor *offsets, *counts;
  const DLTensor *dx, *dw, *dbias;
} tilewise_linear_backward_tensors;

/* options may be NULL. */
TILEWISE_EXPORT tilewise_status tilewise_linear(const tilewise_linear_tensors* tensors,
                                                const tilewise_linear_options* options);
TILEWISE_EXPORT tilewise_status tilewise_linear_backward(const tilewise_linear_backward_tensors* tensors,
                                                         const tilewise_linear_options* options);

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_C_LINEAR_H */
