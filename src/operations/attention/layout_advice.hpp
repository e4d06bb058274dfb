// A word to whoever gave tensors in another layout than the one they named.
#pragma once

#include <string>

#include "tilewise/problem.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::operations::attention {

/// "; q, k and v fit layout=bhsd" where the shapes of q, k and v make the given layout impossible, by more than batch
/// sizes that differ, and another one possible, else "". `with_cu_seqlens`: the call has what layout=thd wants.
[[nodiscard]] std::string layout_advice(Layout given, const TensorView& q, const TensorView& k, const TensorView& v,
                                        bool with_cu_seqlens);

}  // namespace tilewise::operations::attention
