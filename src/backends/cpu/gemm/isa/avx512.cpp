// Products for AVX-512: every element type, computed in fp32, and f64 in fp64.
#include "backends/cpu/gemm/isa/code_steps_avx512.h"
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/isa/simd_avx512.h"
#include "backends/cpu/isa/simd_avx512_f64.h"

namespace tilewise::backends::cpu {

template <>
struct CodeSteps<ComputeReal<Avx512>, E2m1> : WordSteps<ComputeReal<Avx512>> {};

const GemmKernels kAvx512Gemm = {.f32 = Gemm<ComputeReal<Avx512>>::kernel(16),
                                 .bf16 = {},
                                 .f64 = Gemm<ComputeReal<Avx512F64>>::kernel(16),
                                 .formats = &kAvx512Formats};

}  // namespace tilewise::backends::cpu
