// The contract between the host side of linear layers and experts and their kernels: a block of one group's rows times
// a block of its weights' outputs, as plain data. One GemmKernels per instruction set, compiled with that set's flags.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/formats/kernels.hpp"
#include "device/common/activation.h"

namespace tilewise::backends::cpu {

// `Real` below is what a kernel computes in: fp32, and fp64 of f64.

/// Element types of rows, weights, results and scales. e2m1 is packed, two a byte.
enum class GemmElement : int32_t { f32, bf16, f16, f64, e4m3, e2m1, e8m0 };

/// Factors of blocks of elements, as they are stored. Blocks of 16 or 32 elements lie along the depth alone; others are
/// a multiple of 128 deep, or as deep as there is.
struct GemmScales {
  const void* data;                  // of row 0 at depth 0; null: all are 1
  GemmElement element;               // f32, e8m0 or e4m3
  int64_t block_rows, block_depth;   // in elements
  int64_t row_stride, depth_stride;  // from block to block
};

/// Outputs whose weights are adjacent in memory or evenly apart.
struct WeightRun {
  const void* data;  // of the first output at depth 0
  const void* bias;  // Reals, with room to whole vectors of 16; null: none
  int64_t row;       // of the first output, as scales count rows
};

/// What the rows are multiplied by. A gate and its up are two runs, or one whose outputs alternate.
struct GemmWeights {
  WeightRun runs[2];
  int32_t num_runs;
  GemmElement element;
  int64_t outputs;                      // of each run
  int64_t output_stride, depth_stride;  // in elements; one of them is 1
  GemmScales scales;                    // of quantised weights
  int64_t row_step;                     // rows of scales from output to output
  float factor;                         // of all weights, where they are quantised
};

struct GemmTask {
  const void* x;  // rows with a contiguous depth
  GemmElement x_element;
  int64_t x_stride;
  GemmScales x_scales;       // of quantised rows, in the order of memory
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
  GemmElement out_element;
};

/// What scratch depends on: tasks have at most that many rows, and outputs of all runs.
struct GemmShape {
  int64_t rows, outputs, depth;
  bool streamed, quantized, paired;  // paired: gates and ups alternate in one run
};

/// Rows in the order of groups.
struct OuterRows {
  const void* data;
  GemmElement element;
  int64_t stride;
  const int64_t* index;  // of each one in memory; null: as they lie
  const void* factor;    // Reals, of each; null: 1
  int64_t columns;
};

/// out[i, j] = sum over rows of a[row, i] b[row, j]: a block of the gradient of one group's weights.
struct OuterTask {
  OuterRows a, b;
  int64_t rows;
  void* out;  // columns of b are contiguous
  int64_t out_stride;
  GemmElement out_element;
};

/// The gradient of an activation's arguments, of which it is computed again.
struct ActivationTask {
  device::Activation activation;
  device::GateLayout layout;  // of arguments
  int64_t rows, results;      // of one row; arguments are as many, or twice as many with a gate
  const void* arguments;      // Reals; null: the activation is the identity
  int64_t argument_stride;
  const void* dresult;  // gradient of the results
  GemmElement dresult_element;
  int64_t dresult_stride;
  const void* factor;  // Reals, of each row, of the gradient of the results; null: 1
  void* dargument;
  int64_t dargument_stride;
  void* result;  // the results once more, or null
  int64_t result_stride;
  GemmElement element;  // of dargument and result
  void* products;       // Reals: sums over a row of result times dresult; or null
};

using GemmFn = void (*)(const GemmTask& task, void* scratch);
using GemmScratchFn = size_t (*)(const GemmShape& shape);
using OuterFn = void (*)(const OuterTask& task, void* scratch);
using OuterScratchFn = size_t (*)(int64_t a_columns, int64_t b_columns);
/// Scratch: activation_scratch() bytes.
using ActivationFn = void (*)(const ActivationTask& task, void* scratch);
using ActivationScratchFn = size_t (*)(int64_t results);

/// Products computed in one way. Rows and weights of one task may differ in their elements.
struct GemmKernel {
  GemmFn run;
  GemmScratchFn scratch;
  int64_t stream_rows;  // up to which streaming is faster than packing
  int64_t panel;        // outputs that are packed side by side
  OuterFn outer;
  OuterScratchFn outer_scratch;
  ActivationFn activation;
  ActivationScratchFn activation_scratch;
};

/// What one instruction set offers: products in fp32, of bf16 (and what it holds exactly) in the set's own
/// instructions, and in fp64. Without a run they are left to another set.
struct GemmKernels {
  GemmKernel f32, bf16, f64;
  const FormatKernels* formats;  // that quantise rows
};

/// Rows of a task at most.
inline constexpr int64_t kGemmRows = 576;
/// Columns of either kind of rows in an OuterTask at most.
inline constexpr int64_t kOuterColumns = 256;

/// Defined by gemm/isa/<name>.cpp.
extern const GemmKernels kGenericGemm, kAvx2Gemm, kAvx512Gemm, kAvx512Bf16Gemm, kAmxBf16Gemm, kNeonGemm, kNeonBf16Gemm;

}  // namespace tilewise::backends::cpu
