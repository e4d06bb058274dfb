// Attention's part of the checks against the reference.
#pragma once

#include "operations/attention/attention.hpp"
#include "verify/verifier.hpp"

namespace tilewise::verify {

template <>
[[nodiscard]] const Verifier& verifier<operations::Attention>();

}  // namespace tilewise::verify
