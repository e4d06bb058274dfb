// The C interface of quantising.
#include "core/c_api.hpp"
#include "operations/derived/stored.hpp"
#include "operations/quantize/schema.hpp"
#include "tilewise/c/quantize.h"
#include "tilewise/quantize.hpp"

using namespace tilewise;  // the functions below are C's
using namespace tilewise::core::c;
using operations::quantize::kSchema;

tilewise_status tilewise_quantize(const DLTensor* x, const DLTensor* elements, const DLTensor* scales,
                                  const DLTensor* global_scale, const char* format, int32_t power_of_two) {
  return guarded([&] {
    QuantizeArguments arguments{view_of(x, "x"),
                                view_of(elements, "elements"),
                                view_of(scales, "scales"),
                                view_of(global_scale, "global_scale"),
                                parse_block_format(required(format, "format")),
                                power_of_two != 0};
    operations::schema::read_bytes<kSchema>(arguments);
    quantize(arguments);
  });
}

tilewise_status tilewise_dequantize(const DLTensor* elements, const DLTensor* scales, const DLTensor* global_scale,
                                    const DLTensor* out, const char* format) {
  return guarded([&] {
    DequantizeArguments arguments{view_of(elements, "elements"), view_of(scales, "scales"),
                                  view_of(global_scale, "global_scale"), view_of(out, "out"),
                                  parse_block_format(required(format, "format"))};
    operations::schema::read_bytes<kSchema>(arguments);
    dequantize(arguments);
  });
}
