// The KV cache step's entry in the table of verifiers.
#pragma once

#include "operations/kv_cache/kv_cache.hpp"
#include "verify/verifier.hpp"

namespace tilewise::verify {

template <>
[[nodiscard]] const Verifier& verifier<operations::KvCache>();

}  // namespace tilewise::verify
