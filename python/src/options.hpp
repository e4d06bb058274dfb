// Options: AttentionOptions from Python values, with the arrays it borrows kept alive.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "array.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::python {

struct Options {
  AttentionOptions value;
  std::vector<Array> arrays;  ///< what the views in `value` borrow from
};

}  // namespace tilewise::python
