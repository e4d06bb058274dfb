// Products for AVX512-BF16: bf16 by vdpbf16ps.
#include "backends/cpu/gemm/isa/code_steps_avx512.h"
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/isa/compute_bf16.h"

namespace tilewise::backends::cpu {

template <>
struct CodeSteps<ComputeBf16, E2m1> : HalfWordSteps<ComputeBf16> {};

const GemmKernels kAvx512Bf16Gemm = {
    .f32 = {}, .bf16 = Gemm<ComputeBf16>::kernel(16), .f64 = {}, .formats = &kAvx512Formats};

}  // namespace tilewise::backends::cpu
