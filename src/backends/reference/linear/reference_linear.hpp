// Linear and grouped linear layers in double precision (long double where out is f64): the oracle.
#pragma once

#include "operations/linear/params.hpp"

namespace tilewise::backends::reference {

/// Rows outside every group are written 0.
void linear_forward(const operations::linear::LinearParams& p);

/// Writes dx, dw and dbias where they are given: 0 for rows outside every group, and for experts without rows.
void linear_backward(const operations::linear::LinearParams& p);

}  // namespace tilewise::backends::reference
