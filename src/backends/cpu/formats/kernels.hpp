// What each instruction set computes of quantised formats: runs of numbers that share a scale.
#pragma once

#include <stdint.h>

namespace tilewise::backends::cpu {

/// Element types of numbers, in the order of the arrays below.
enum NumberIndex : int { kNumbersF32 = 0, kNumbersBf16 = 1, kNumbersF16 = 2, kNumbersCount = 3 };

/// Of a run of numbers.
struct RunExtremes {
  float amax;  // over its finite numbers
  bool nan;    // whether it has one
};

/// The largest finite magnitude.
using ExtremesFn = RunExtremes (*)(const void* numbers, int64_t size);
/// numbers / divisor as elements. Of e2m1 the last byte of an odd run has 0 in its other half.
using EncodeElementsFn = void (*)(const void* numbers, int64_t size, float divisor, uint8_t* elements);
/// element * scale * global, of which the first product is exact (global is 1 where the scale is not).
using DecodeElementsFn = void (*)(const uint8_t* elements, int64_t size, float scale, float global, void* numbers);

struct FormatKernels {
  ExtremesFn extremes[kNumbersCount];
  EncodeElementsFn encode_e4m3[kNumbersCount], encode_e2m1[kNumbersCount];
  DecodeElementsFn decode_e4m3[kNumbersCount], decode_e2m1[kNumbersCount];
};

/// Defined by isa/<name>.cpp.
extern const FormatKernels kGenericFormats, kAvx2Formats, kAvx512Formats, kNeonFormats;

}  // namespace tilewise::backends::cpu
