// Rows of packed results that belong to no sequence, for kernels on the host.
#pragma once

#include <memory>

#include "operations/attention/attention.hpp"

namespace tilewise::operations::attention {

/// The kernel, or one that clears these rows after it where the problem asks for that.
[[nodiscard]] std::unique_ptr<core::Kernel> clearing_rest(std::unique_ptr<core::Kernel> kernel,
                                                          const AttentionProblem& problem);

}  // namespace tilewise::operations::attention
