/* Routing of tokens to experts in C. */
#ifndef TILEWISE_C_ROUTE_H
#define TILEWISE_C_ROUTE_H

#include "tilewise/c/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(readability-identifier-naming): C names carry their library's. */

/* Options of routing. Fill with tilewise_route_options_init(), then change fields. Later versions append fields;
 * struct_size tells which ones the caller knows. A name of NULL is the first of those listed. */
typedef struct tilewise_route_options {
  size_t struct_size;
  const char* score;     /* "softmax", "sigmoid", "sqrt_softplus", "identity" */
  const char* weigh;     /* "score", "softmax_of_chosen", "sigmoid_of_chosen" */
  const char* normalise; /* "no", "sum_plus_epsilon", "at_least_epsilon" */
  double epsilon;        /* 0 */
  double routed_scaling_factor;
  const char* implementation; /* by name; NULL: the cheapest that accepts the problem */
  /* Of the forward pass alone, at their defaults in the backward pass. */
  const char* chosen_by;       /* "score", "logits" */
  int64_t n_group, topk_group; /* 1 and 1: no groups */
  const char* group_value;     /* "max", "sum_of_two" */
  const char* outside_groups;  /* "minus_infinity", "zero" */
} tilewise_route_options;

/* Sets every field to its default. Pass sizeof(tilewise_route_options). */
TILEWISE_EXPORT tilewise_status tilewise_route_options_init(tilewise_route_options* options, size_t struct_size);

/* Tensors of the forward pass, which chooses as many experts for each token as topk_ids has columns. Shapes and dtypes:
 * tilewise/route.hpp. bias and scale_of_expert may be NULL. */
typedef struct tilewise_route_tensors {
  const DLTensor *logits, *bias, *scale_of_expert;
  const DLTensor *topk_ids, *topk_weights; /* written */
} tilewise_route_tensors;

/* Tensors of the backward pass. scale_of_expert may be NULL. */
typedef struct tilewise_route_backward_tensors {
  const DLTensor *logits, *scale_of_expert; /* as the forward pass took them */
  const DLTensor* topk_ids;                 /* as it wrote them */
  const DLTensor* dtopk_weights;
  const DLTensor* dlogits; /* written */
} tilewise_route_backward_tensors;

/* options may be NULL. */
TILEWISE_EXPORT tilewise_status tilewise_route(const tilewise_route_tensors* tensors,
                                               const tilewise_route_options* options);
TILEWISE_EXPORT tilewise_status tilewise_route_backward(const tilewise_route_backward_tensors* tensors,
                                                        const tilewise_route_options* options);

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_C_ROUTE_H */
