// quantize() and dequantize() on the CPU's instruction sets, equal to those of formats/quantize.hpp bit for bit, for
// any number of threads. Rows, or as many as share their scales, are the unit of work; nothing is allocated.
#pragma once

#include "backends/cpu/cpu_features.hpp"
#include "backends/cpu/formats/kernels.hpp"
#include "formats/quantize.hpp"

namespace tilewise::backends::cpu {

/// Those of an instruction set; null where it has none of its own or is not of this machine's architecture.
[[nodiscard]] const FormatKernels* format_kernels(Isa isa);

/// Arguments as those of formats::quantize(); x is contiguous along its last dimension too.
void quantize(const FormatKernels& kernels, const TensorView& x, const BlockFormat& format,
              const formats::Quantized& out, bool power_of_two = false);
void dequantize(const FormatKernels& kernels, const formats::Quantized& x, const BlockFormat& format,
                const TensorView& out);

}  // namespace tilewise::backends::cpu
