// The one list of operations that have portable kernels: what each family of a GPU backend has rows for.
#pragma once

#include "backends/portable/attention/implementation.hpp"
#include "backends/portable/kv_cache/implementation.hpp"
#include "backends/portable/linear/lowering.hpp"
#include "backends/portable/merge/lowering.hpp"
#include "backends/portable/moe/lowering.hpp"
#include "backends/portable/quantize/lowering.hpp"
#include "backends/portable/route/lowering.hpp"
#include "backends/rows_of.hpp"

namespace tilewise::backends::portable {

/// Made of a name, a gpu::Family and a gpu::FindRuntime.
using FamilyRows = RowsOf<AttentionImplementation, KvCacheImplementation, PortableRow<operations::Linear>,
                          PortableRow<operations::Merge>, PortableRow<operations::Moe>,
                          PortableRow<operations::Quantize>, PortableRow<operations::Route>>;

}  // namespace tilewise::backends::portable
