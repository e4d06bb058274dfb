// Bounds of an expression as the source of kernels.
#pragma once

#include <span>
#include <string>

#include "expression/device_source.hpp"

namespace tilewise::expression {

/// The statements of a function that returns the bounds of a bool or an int, in the words of
/// device/attention/score_bounds.h: one for each term that the result's bounds need. Variables are Bounds of their
/// names. Of floats, and of ints that may overflow, it takes what bounds_of_nodes() says of all `inputs`. Empty where
/// that is all that can be said of the result.
[[nodiscard]] std::string bounds_source(const Expression& expression, std::span<const Interval> inputs,
                                        std::span<const DeviceTable> tables);

}  // namespace tilewise::expression
