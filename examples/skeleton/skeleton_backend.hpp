// A worked skeleton of an implementation: forward, fp32, one query row at a time with an
// online softmax. docs/adding_an_implementation.md walks through it.
#pragma once

#include "core/implementation.hpp"

namespace tilewise::examples {

/// "example.skeleton".
[[nodiscard]] const core::Implementation& skeleton_implementation();

}  // namespace tilewise::examples
