// Products for AArch64's NEON: every element type, computed in fp32, and f64 in fp64.
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/isa/simd_generic_f64.h"
#include "backends/cpu/isa/simd_neon.h"

namespace tilewise::backends::cpu {
namespace {
using Compute = ComputeReal<Neon>;
/// As isa/neon.cpp.
struct NeonF64 : GenericF64 {};
}  // namespace

const GemmKernels kNeonGemm = make_gemm_kernels<Gemm<Compute, float>, Gemm<Compute, Bf16>, Gemm<Compute, F16>,
                                                Gemm<ComputeReal<NeonF64>, double>>(16);

}  // namespace tilewise::backends::cpu
