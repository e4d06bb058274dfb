// A contiguous call of an operation with a schema, on stand-ins; see gpu/ahead_of_time.hpp.
#pragma once

#include "gpu/stand_ins.hpp"

namespace tilewise::backends {

/// Compiled once for each operation, in contiguous_call.cpp: two backends and Hopper's rows have them.
template <typename Op>
[[nodiscard]] gpu::DescribedCall contiguous_call(const typename Op::Problem& problem);

}  // namespace tilewise::backends
