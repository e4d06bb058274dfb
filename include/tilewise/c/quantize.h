/* Quantising in C: numbers to narrow elements with scales, and back. */
#ifndef TILEWISE_C_QUANTIZE_H
#define TILEWISE_C_QUANTIZE_H

#include "tilewise/c/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(readability-identifier-naming): C names carry their library's. */

/* Writes the elements and scales of x, [rows, columns] or [num_experts, rows, columns] in f32, bf16 or f16, in `format`
 * ("fp8_row", "mxfp4", ...). Shapes and dtypes: tilewise/quantize.hpp; bytes stand for narrow elements and scales,
 * pairs of elements of 4 bits in one. global_scale is written with "nvfp4", else NULL. power_of_two: of fp8 but
 * "mxfp8", each scale is the least power of two that is not smaller. */
TILEWISE_EXPORT tilewise_status tilewise_quantize(const DLTensor* x, const DLTensor* elements, const DLTensor* scales,
                                                  const DLTensor* global_scale, const char* format,
                                                  int32_t power_of_two);

/* The other way: writes out in f32, bf16 or f16. */
TILEWISE_EXPORT tilewise_status tilewise_dequantize(const DLTensor* elements, const DLTensor* scales,
                                                    const DLTensor* global_scale, const DLTensor* out,
                                                    const char* format);

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TILEWISE_C_QUANTIZE_H */
