// The one list of operations. What needs something of each of them is made over this list, so that an operation that
// lacks it does not compile.
#pragma once

#include "operations/attention/attention.hpp"
#include "operations/kv_cache/kv_cache.hpp"
#include "operations/linear/linear.hpp"
#include "operations/merge/merge.hpp"
#include "operations/moe/moe.hpp"
#include "operations/quantize/quantize.hpp"
#include "operations/route/route.hpp"

namespace tilewise::operations {

template <typename... Traits>
struct List {
  /// Calls visit.template operator()<Traits>() for each operation.
  template <typename Visit>
  static void for_each(Visit&& visit) {
    (visit.template operator()<Traits>(), ...);
  }
  static constexpr std::size_t kSize = sizeof...(Traits);
};

using All = List<Attention, KvCache, Merge, Linear, Route, Moe, Quantize>;

}  // namespace tilewise::operations
