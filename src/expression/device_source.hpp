// An expression as the source of kernels.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "expression/bounds.hpp"
#include "expression/expression.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::expression {

/// A captured tensor as kernels find it.
struct DeviceTable {
  DType dtype = DType::f32;
  bool empty = false;  ///< a dimension has size 0: every look-up reads 0, and nothing from memory
};

/// What kernels call an element type of tables: a TableElement.
[[nodiscard]] std::string_view table_element_name(DType dtype);

/// The statements of a function that returns the result: one for each term, named by its place, so that equal
/// expressions of tables of equal dtypes give equal text. Variables go by their names, int32_t or int64_t where
/// `inputs` says what 32 bits hold, and floats are float; `tables` is an array there, and `Machine` a type. An int is
/// computed in 32 bits where its bounds show that 64 would give the same.
[[nodiscard]] std::string device_source(const Expression& expression, std::span<const Interval> inputs,
                                        std::span<const DeviceTable> tables);

}  // namespace tilewise::expression
