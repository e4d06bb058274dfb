// Products for any machine: every element type, computed in fp32, and f64 in fp64.
#include "backends/cpu/gemm/isa/gemm_set.h"
#include "backends/cpu/isa/simd_generic.h"
#include "backends/cpu/isa/simd_generic_f64.h"

namespace tilewise::backends::cpu {

const GemmKernels kGenericGemm = {.f32 = Gemm<ComputeReal<Generic>>::kernel(8),
                                  .bf16 = {},
                                  .f64 = Gemm<ComputeReal<GenericF64>>::kernel(8),
                                  .formats = &kGenericFormats};

}  // namespace tilewise::backends::cpu
