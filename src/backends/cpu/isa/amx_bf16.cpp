// Kernels for AMX: bf16 tensors, products by tdpbf16ps.
#include "backends/cpu/isa/compute_amx.h"
#include "backends/cpu/isa/kernel_set.h"

namespace tilewise::backends::cpu {

const KernelSet kAmxBf16Kernels = make_kernel_set<NoElement, For<ComputeAmx, Bf16>, NoElement, NoElement>();

}  // namespace tilewise::backends::cpu
