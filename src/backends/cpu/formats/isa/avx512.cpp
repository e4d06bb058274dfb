// Quantised formats on AVX-512.
#include "backends/cpu/formats/isa/format_rows.h"
#include "backends/cpu/isa/simd_avx512.h"

namespace tilewise::backends::cpu {

const FormatKernels kAvx512Formats = make_format_kernels<Avx512>();

}  // namespace tilewise::backends::cpu
