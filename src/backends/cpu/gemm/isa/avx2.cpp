// Products for AVX2 + FMA: every element type, computed in fp32, and f64 in fp64.
#include "backends/cpu/gemm/isa/code_steps_avx2.h"
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/gemm/isa/number_steps_avx2.h"
#include "backends/cpu/isa/simd_avx2.h"
#include "backends/cpu/isa/simd_avx2_f64.h"

namespace tilewise::backends::cpu {

template <>
struct NumberSteps<ComputeReal<Avx2>, Bf16> : EvenOddSteps<ComputeReal<Avx2>> {};
template <>
struct CodeSteps<ComputeReal<Avx2>, E2m1> : HalfSteps<ComputeReal<Avx2>> {};
template <>
struct CodeSteps<ComputeReal<Avx2>, E4m3> : HalfFloatSteps<ComputeReal<Avx2>> {};

const GemmKernels kAvx2Gemm = {.f32 = Gemm<ComputeReal<Avx2>>::kernel(16),
                               .bf16 = {},
                               .f64 = Gemm<ComputeReal<Avx2F64>>::kernel(16),
                               .formats = &kAvx2Formats};

}  // namespace tilewise::backends::cpu
