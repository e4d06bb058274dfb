// Products for AMX: bf16 by tdpbf16ps, few rows by vdpbf16ps.
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/isa/compute_amx.h"

namespace tilewise::backends::cpu {

const GemmKernels kAmxBf16Gemm = make_gemm_kernels<NoGemm, Gemm<ComputeAmx, Bf16>, NoGemm, NoGemm>(8);

}  // namespace tilewise::backends::cpu
