// What implementations of quantize and dequantize are launched with.
#pragma once

#include "formats/quantize.hpp"
#include "tilewise/block_format.hpp"

namespace tilewise::operations::quantize {

struct QuantizeParams {
  TensorView numbers;            ///< x, or out of dequantize
  formats::Quantized quantized;  ///< written, or read by dequantize
  BlockFormat format;
  bool power_of_two;
};

}  // namespace tilewise::operations::quantize
