// Products for AArch64's NEON: every element type, computed in fp32, and f64 in fp64.
#include "backends/cpu/gemm/isa/code_steps_neon.h"
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/isa/simd_generic_f64.h"
#include "backends/cpu/isa/simd_neon.h"

namespace tilewise::backends::cpu {
namespace {
/// As isa/neon.cpp.
struct NeonF64 : GenericF64 {};
}  // namespace

template <>
struct CodeSteps<ComputeReal<Neon>, E2m1> : NeonSteps<ComputeReal<Neon>> {};

const GemmKernels kNeonGemm = {.f32 = Gemm<ComputeReal<Neon>>::kernel(16),
                               .bf16 = {},
                               .f64 = Gemm<ComputeReal<NeonF64>>::kernel(16),
                               .formats = &kNeonFormats};

}  // namespace tilewise::backends::cpu
