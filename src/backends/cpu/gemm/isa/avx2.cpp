// Products for AVX2 + FMA: every element type, computed in fp32, and f64 in fp64.
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/isa/simd_avx2.h"
#include "backends/cpu/isa/simd_avx2_f64.h"

namespace tilewise::backends::cpu {
namespace {
using Compute = ComputeReal<Avx2>;
}

const GemmKernels kAvx2Gemm = make_gemm_kernels<Gemm<Compute, float>, Gemm<Compute, Bf16>, Gemm<Compute, F16>,
                                                Gemm<ComputeReal<Avx2F64>, double>>(16);

}  // namespace tilewise::backends::cpu
