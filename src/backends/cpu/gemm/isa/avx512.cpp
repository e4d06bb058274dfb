// Products for AVX-512: every element type, computed in fp32, and f64 in fp64.
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/isa/simd_avx512.h"
#include "backends/cpu/isa/simd_avx512_f64.h"

namespace tilewise::backends::cpu {
namespace {
using Compute = ComputeReal<Avx512>;
}

const GemmKernels kAvx512Gemm = make_gemm_kernels<Gemm<Compute, float>, Gemm<Compute, Bf16>, Gemm<Compute, F16>,
                                                  Gemm<ComputeReal<Avx512F64>, double>>(16);

}  // namespace tilewise::backends::cpu
