// Kernels for AArch64's NEON: every element type, computed in fp32, and f64 in fp64.
#include "backends/cpu/isa/kernel_set.h"
#include "backends/cpu/isa/simd_generic_f64.h"
#include "backends/cpu/isa/simd_neon.h"

namespace tilewise::backends::cpu {
namespace {
using Compute = ComputeReal<Neon>;
/// The compiler's own vectors are NEON's there; only the name is another, since no file shares code with another.
struct NeonF64 : GenericF64 {};
}  // namespace

const KernelSet kNeonKernels =
    make_kernel_set<For<Compute, float>, For<Compute, Bf16>, For<Compute, F16>, For<ComputeReal<NeonF64>, double>>();

}  // namespace tilewise::backends::cpu
