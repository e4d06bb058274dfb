// Quantised formats on NEON.
#include "backends/cpu/formats/isa/format_rows.h"
#include "backends/cpu/isa/simd_neon.h"

namespace tilewise::backends::cpu {

const FormatKernels kNeonFormats = make_format_kernels<Neon>();

}  // namespace tilewise::backends::cpu
