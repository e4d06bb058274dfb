// Kernels for AVX512-BF16 with AVX512-VBMI: decoding over keys and values in fp8.
#include "backends/cpu/isa/compute_vbmi.h"
#include "backends/cpu/isa/kernel_set.h"

namespace tilewise::backends::cpu {

const KernelSet kAvx512VbmiKernels = make_fp8_decode_set<ComputeVbmi, Bf16>(kElementBf16);

}  // namespace tilewise::backends::cpu
