// Kernels for AVX512-BF16: bf16 tensors, products by vdpbf16ps.
#include "backends/cpu/isa/compute_bf16.h"
#include "backends/cpu/isa/kernel_set.h"

namespace tilewise::backends::cpu {

const KernelSet kAvx512Bf16Kernels = make_kernel_set<NoElement, For<ComputeBf16, Bf16>, NoElement, NoElement>();

}  // namespace tilewise::backends::cpu
