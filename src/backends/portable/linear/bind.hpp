// A call's tensors in the parameter blocks of linear layers' kernels, which say what each of theirs is.
#pragma once

#include "device/linear/params.h"
#include "operations/linear/params.hpp"

namespace tilewise::backends::portable {

void bind(const operations::linear::LinearParams& call, device::LinearProductParams& params);
void bind(const operations::linear::LinearParams& call, device::LinearEpilogueParams& params);
void bind(const operations::linear::LinearParams& call, device::LinearDwParams& params);
void bind(const operations::linear::LinearParams& call, device::LinearDbiasParams& params);

}  // namespace tilewise::backends::portable
