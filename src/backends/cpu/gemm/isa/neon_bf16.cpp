// Products for AArch64's bf16 instructions: bf16 by bfdot.
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/isa/compute_neon_bf16.h"

namespace tilewise::backends::cpu {

const GemmKernels kNeonBf16Gemm = make_gemm_kernels<NoGemm, Gemm<ComputeNeonBf16, Bf16>, NoGemm, NoGemm>(16);

}  // namespace tilewise::backends::cpu
