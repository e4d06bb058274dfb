// A table of floating-point dtypes.
#include "verify/rounding.hpp"

#include <limits>

namespace tilewise::verify {
namespace {

struct Rounding {
  double unit, smallest, largest;
};

Rounding rounding_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {0x1p-53, 1e-290, std::numeric_limits<double>::max()};
    case DType::bf16:
      return {0x1p-8, 1e-30, 0x1.FEp127};
    case DType::f16:
      return {0x1p-11, 0x1p-25, 65504.0};
    case DType::fp8_e4m3:
      return {0x1p-4, 0x1p-10, 448.0};
    case DType::fp8_e5m2:
      return {0x1p-3, 0x1p-17, 57344.0};
    case DType::fp4_e2m1:
      return {0x1p-2, 0x1p-2, 6.0};
    default:
      return {0x1p-24, 1e-30, double{std::numeric_limits<float>::max()}};
  }
}

}  // namespace

double unit_roundoff(DType dtype) { return rounding_of(dtype).unit; }
double smallest_rounding(DType dtype) { return rounding_of(dtype).smallest; }
double largest_finite(DType dtype) { return rounding_of(dtype).largest; }

}  // namespace tilewise::verify
