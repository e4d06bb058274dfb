// Merge's part of the checks against the reference.
#pragma once

#include "operations/merge/merge.hpp"
#include "verify/verifier.hpp"

namespace tilewise::verify {

template <>
[[nodiscard]] const Verifier& verifier<operations::Merge>();

}  // namespace tilewise::verify
