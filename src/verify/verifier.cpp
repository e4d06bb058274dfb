// The table of verifiers, made over the one list of operations.
#include "verify/verifier.hpp"

#include <algorithm>
#include <array>

#include "operations/list.hpp"

namespace tilewise::verify {

// Each is defined beside its operation's drawing: one that is not does not link.
template <>
const Verifier& verifier<operations::Attention>();
template <>
const Verifier& verifier<operations::KvCache>();
template <>
const Verifier& verifier<operations::Merge>();
template <>
const Verifier& verifier<operations::Linear>();
template <>
const Verifier& verifier<operations::Route>();
template <>
const Verifier& verifier<operations::Moe>();
template <>
const Verifier& verifier<operations::Quantize>();

std::span<const Verifier* const> verifiers() {
  static const auto table = [] {
    std::array<const Verifier*, operations::All::kSize> rows{};
    std::size_t next = 0;
    operations::All::for_each([&]<typename Traits> { rows[next++] = &verifier<Traits>(); });
    return rows;
  }();
  return table;
}

const Verifier& verifier_of(const core::OperationInterface& operation) {
  return **std::ranges::find_if(verifiers(), [&](const Verifier* row) { return &row->operation() == &operation; });
}

}  // namespace tilewise::verify
