// Kernels for AVX-512 without bf16 products: every element type, computed in fp32, and f64 in fp64.
#include "backends/cpu/isa/kernel_set.h"
#include "backends/cpu/isa/simd_avx512.h"
#include "backends/cpu/isa/simd_avx512_f64.h"

namespace tilewise::backends::cpu {
namespace {
using Compute = ComputeReal<Avx512>;
}

const KernelSet kAvx512Kernels =
    make_kernel_set<For<Compute, float>, For<Compute, Bf16>, For<Compute, F16>, For<ComputeReal<Avx512F64>, double>>();

}  // namespace tilewise::backends::cpu
