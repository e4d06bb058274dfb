// score_mod and mask_mod of a problem as kernels get them: source for their stubs, and tables in their parameters.
#pragma once

#include <span>
#include <string>

#include "device/attention/params.h"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

[[nodiscard]] bool has_functions(const Problem& problem);

/// Whether kernels learn first what mask_mod leaves of each tile (mask_tiles), and skip what it hides: where that is
/// the same for all heads, and tiles are where keys are counted from.
[[nodiscard]] bool knows_tiles(const Problem& problem);
/// Whether what mask_mod leaves depends on the entry of the batch; of a problem that knows tiles.
[[nodiscard]] bool has_tiles_of_entries(const Problem& problem);

/// What kernels can't take of a problem's functions, as a reason; empty where they can.
[[nodiscard]] std::string functions_refusal(const Problem& problem);

/// The source that stubs have before a kernel (gpu::KernelKey::definitions): a struct ScoreFunctions, in the words of
/// device/attention/score_functions.h. Empty without functions. Equal functions of tables of equal dtypes give equal
/// source, whatever the tables' sizes.
[[nodiscard]] std::string function_definitions(const Problem& problem);

/// The tables, but for what only a call knows.
void set_tables(const Problem& problem, std::span<device::ScoreTable, device::kMostTables> tables);

}  // namespace tilewise::backends::portable
