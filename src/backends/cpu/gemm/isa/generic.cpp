// Products for any machine: every element type, computed in fp32, and f64 in fp64.
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/isa/simd_generic.h"
#include "backends/cpu/isa/simd_generic_f64.h"

namespace tilewise::backends::cpu {
namespace {
using Compute = ComputeReal<Generic>;
}

const GemmKernels kGenericGemm = make_gemm_kernels<Gemm<Compute, float>, Gemm<Compute, Bf16>, Gemm<Compute, F16>,
                                                   Gemm<ComputeReal<GenericF64>, double>>(8);

}  // namespace tilewise::backends::cpu
