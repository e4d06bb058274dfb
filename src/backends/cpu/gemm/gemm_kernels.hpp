// The contract between the host side of linear layers and experts and their kernels: a block of one group's rows times
// a block of its weights' outputs, as plain data. One GemmKernels per instruction set, compiled with that set's flags.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/kernels.hpp"
#include "device/common/activation.h"

namespace tilewise::backends::cpu {

/// Outputs whose weights are adjacent in memory or evenly apart.
struct WeightRun {
  const void* data;  // of the first output at depth 0
  const void* bias;  // Reals, with room to whole vectors of 16; null: none
};

/// What the rows are multiplied by. A gate and its up are two runs, or one whose outputs alternate.
struct GemmWeights {
  WeightRun runs[2];
  int32_t num_runs;
  int64_t outputs;                      // of each run
  int64_t output_stride, depth_stride;  // in elements; one of them is 1
};

struct GemmTask {
  const void* x;  // rows with a contiguous depth
  int64_t x_stride;
  const int64_t* row_index;  // rows of x that are multiplied; null: the first ones
  int64_t rows, depth;
  bool streamed;  // few rows: weights are read once, straight from memory, else packed for all rows
  GemmWeights w;

  device::Activation activation;
  bool gated;              // results are of pairs: of two runs, or of adjacent outputs of one
  const void* factor;      // Reals, of each row; null: 1
  bool factor_on_product;  // before bias and activation, else last of all
  void* out;               // of the first row and result
  int64_t out_stride;
  ElementIndex out_element;
};

using GemmFn = void (*)(const GemmTask& task, void* scratch);
/// Bytes for tasks of at most that many rows and outputs of all runs.
using GemmScratchFn = size_t (*)(int64_t rows, int64_t outputs, int64_t depth, bool streamed);

/// What one instruction set offers, by the element type of rows and weights; null where it is left to another set.
struct GemmKernels {
  GemmFn run[kElementCount];
  GemmScratchFn scratch[kElementCount];
  int64_t stream_rows[kElementCount];  // up to which streaming is faster than packing
  int64_t panel[kElementCount];        // outputs that are packed side by side
};

/// Rows of a task at most.
inline constexpr int64_t kGemmRows = 384;

/// Defined by gemm/isa/<name>.cpp.
extern const GemmKernels kGenericGemm, kAvx2Gemm, kAvx512Gemm, kAvx512Bf16Gemm, kAmxBf16Gemm, kNeonGemm, kNeonBf16Gemm;

}  // namespace tilewise::backends::cpu
