// Products for AArch64's bf16 instructions: bf16 by bfdot.
#include "backends/cpu/gemm/isa/code_steps_neon.h"
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/isa/compute_neon_bf16.h"

namespace tilewise::backends::cpu {

template <>
struct CodeSteps<ComputeNeonBf16, E2m1> : NeonSteps<ComputeNeonBf16> {};

const GemmKernels kNeonBf16Gemm = {
    .f32 = {}, .bf16 = Gemm<ComputeNeonBf16>::kernel(16), .f64 = {}, .formats = &kNeonFormats};

}  // namespace tilewise::backends::cpu
