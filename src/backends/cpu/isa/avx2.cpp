// Kernels for AVX2 + FMA: every element type, computed in fp32, and f64 in fp64.
#include "backends/cpu/isa/kernel_set.h"
#include "backends/cpu/isa/simd_avx2.h"
#include "backends/cpu/isa/simd_avx2_f64.h"

namespace tilewise::backends::cpu {
namespace {
using Compute = ComputeReal<Avx2>;
}

const KernelSet kAvx2Kernels =
    make_kernel_set<For<Compute, float>, For<Compute, Bf16>, For<Compute, F16>, For<ComputeReal<Avx2F64>, double>>();

}  // namespace tilewise::backends::cpu
