// Ctrl-C during a long call on the CPU, and whatever else Python's signal handlers raise.
#pragma once

#include <nanobind/nanobind.h>

namespace tilewise::python {

/// From now on calls of Python's main thread answer signals while they run.
void answer_signals();

/// Makes Python raise the exception as soon as it runs again on its main thread, for callers that would turn a C++
/// exception into something else. Throws it where that is not possible.
void raise_on_return(const nanobind::python_error& error);

}  // namespace tilewise::python
