// Quantised formats on AVX2.
#include "backends/cpu/formats/isa/format_rows.h"
#include "backends/cpu/isa/simd_avx2.h"

namespace tilewise::backends::cpu {

const FormatKernels kAvx2Formats = make_format_kernels<Avx2>();

}  // namespace tilewise::backends::cpu
