// Products for AVX512-BF16: bf16 by vdpbf16ps.
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/isa/compute_bf16.h"

namespace tilewise::backends::cpu {

const GemmKernels kAvx512Bf16Gemm = make_gemm_kernels<NoGemm, Gemm<ComputeBf16, Bf16>, NoGemm, NoGemm>(16);

}  // namespace tilewise::backends::cpu
