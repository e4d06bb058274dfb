/* The C interface of Tilewise, over DLPack tensors. Every function that can fail returns a
 * tilewise_status and keeps a sentence for tilewise_last_error(); no exception ever leaves.
 * The meaning of every operation and option: docs/semantics.md. */
#ifndef TILEWISE_TILEWISE_H
#define TILEWISE_TILEWISE_H

/* One header for each operation, beside what they share. */
#include "tilewise/c/attention.h"
#include "tilewise/c/common.h"
#include "tilewise/c/kv_cache.h"
#include "tilewise/c/linear.h"
#include "tilewise/c/merge.h"
#include "tilewise/c/moe.h"
#include "tilewise/c/quantize.h"
#include "tilewise/c/route.h"

#endif /* TILEWISE_TILEWISE_H */
