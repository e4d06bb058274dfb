// The kinds of calls whose bindings follow from an operation's schema.
#pragma once

#include <type_traits>

#include "operations/list.hpp"

namespace tilewise::python {

/// Attention and the KV cache step have schemas, and bindings by hand: their tensors are in structs of options, in
/// another order.
template <typename Op>
inline constexpr bool kIsBoundByHand =
    std::is_same_v<Op, operations::Attention> || std::is_same_v<Op, operations::KvCache>;

/// Calls visit.operator()<Op, Arguments>() for each kind of call of each such operation.
template <typename Visit>
void for_each_call_by_schema(const Visit& visit) {
  operations::All::for_each([&visit]<typename Op> {
    if constexpr (requires { Op::kSchema; } && !kIsBoundByHand<Op>)
      Op::Schema::for_each_call([&visit]<typename Arguments> { visit.template operator()<Op, Arguments>(); });
  });
}

}  // namespace tilewise::python
