// Kernels for AArch64 with bf16 (FEAT_BF16): bf16 tensors, products by bfdot.
#include "backends/cpu/isa/compute_neon_bf16.h"
#include "backends/cpu/isa/kernel_set.h"

namespace tilewise::backends::cpu {

const KernelSet kNeonBf16Kernels = make_kernel_set<NoElement, For<ComputeNeonBf16, Bf16>, NoElement, NoElement>();

}  // namespace tilewise::backends::cpu
