/* What the C functions of all operations share: status, plans, problem texts, threads. */
#ifndef TILEWISE_C_COMMON_H
#define TILEWISE_C_COMMON_H

#include <stddef.h>
#include <stdint.h>

#include "tilewise/dlpack.h"
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

/* A plan decides everything that does not depend on the data: implementation, schedule,
 * workspace; on a GPU for one device. Immutable; any number of threads may run it at once. */
typedef struct tilewise_plan tilewise_plan;

/* From problem text, on a GPU for the thread's current device; implementation may be NULL. */
TILEWISE_EXPORT tilewise_status tilewise_plan_problem(const char* problem, const char* implementation,
                                                      tilewise_plan** plan);

TILEWISE_EXPORT tilewise_status tilewise_plan_workspace_size(const tilewise_plan* plan, size_t* size);
/* The chosen implementation's name; lives as long as the program. */
TILEWISE_EXPORT tilewise_status tilewise_plan_implementation(const tilewise_plan* plan, const char** name);
/* NULL is allowed. */
TILEWISE_EXPORT void tilewise_plan_destroy(tilewise_plan* plan);

/* Texts below are allocated for the caller, who returns them to tilewise_free_text(). */

/* Parses and validates problem text and returns its normal form. */
TILEWISE_EXPORT tilewise_status tilewise_parse_problem(const char* problem, char** normal_form);
/* A table of every implementation with its verdict, estimate and reason. */
TILEWISE_EXPORT tilewise_status tilewise_explain(const char* problem, const char* implementation, char** table);
/* NULL is allowed. */
TILEWISE_EXPORT void tilewise_free_text(char* text);

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

#endif /* TILEWISE_C_COMMON_H */
