// Quantised formats on any machine.
#include "backends/cpu/formats/isa/format_rows.h"
#include "backends/cpu/isa/simd_generic.h"

namespace tilewise::backends::cpu {

const FormatKernels kGenericFormats = make_format_kernels<Generic>();

}  // namespace tilewise::backends::cpu
