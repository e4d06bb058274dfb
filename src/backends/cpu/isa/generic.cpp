// Kernels for any machine: every element type, computed in fp32, and f64 in fp64.
#include "backends/cpu/isa/kernel_set.h"
#include "backends/cpu/isa/simd_generic.h"
#include "backends/cpu/isa/simd_generic_f64.h"

namespace tilewise::backends::cpu {
namespace {
using Compute = ComputeReal<Generic>;
}

const KernelSet kGenericKernels =
    make_kernel_set<For<Compute, float>, For<Compute, Bf16>, For<Compute, F16>, For<ComputeReal<GenericF64>, double>>();

}  // namespace tilewise::backends::cpu
