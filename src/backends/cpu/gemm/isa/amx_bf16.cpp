// Products for AMX: bf16 by tdpbf16ps, few rows by vdpbf16ps.
#include "backends/cpu/gemm/isa/code_steps_avx512.h"
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/isa/compute_amx.h"

namespace tilewise::backends::cpu {

template <>
struct CodeSteps<ComputeAmx, E2m1> : HalfWordSteps<ComputeAmx> {};

const GemmKernels kAmxBf16Gemm = {
    .f32 = {}, .bf16 = Gemm<ComputeAmx>::kernel(8), .f64 = {}, .formats = &kAvx512Formats};

}  // namespace tilewise::backends::cpu
