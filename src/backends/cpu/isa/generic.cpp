// Kernels for any machine: every element type, computed in fp32.
#include "backends/cpu/isa/kernel_set.h"
#include "backends/cpu/isa/simd_generic.h"

namespace tilewise::backends::cpu {
namespace {
using Compute = ComputeF32<Generic>;
}

const KernelSet kGenericKernels = make_kernel_set<For<Compute, float>, For<Compute, Bf16>, For<Compute, F16>>();

}  // namespace tilewise::backends::cpu
