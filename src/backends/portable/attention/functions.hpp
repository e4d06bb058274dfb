// score_mod and mask_mod of a problem as kernels get them: source for their stubs, and tables in their parameters.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "device/attention/params.h"
#include "expression/derivative.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

/// What q_idx is: the query, or the key that it stands at, which may be before the first.
enum class QueryIndex : std::uint8_t { query, position };

/// The tiles that kernels go by: none, or what mask_tiles finds, where that is the same for all heads or whatever it
/// is (knows_tiles()).
enum class KnownTiles : std::uint8_t { none, of_all_heads, of_each_head };

/// How functions are asked.
struct FunctionUse {
  QueryIndex query_index = QueryIndex::query;
  KnownTiles tiles = KnownTiles::of_all_heads;
};

/// Rows of a sequence that has functions, at most: of these, indices fit 32 bits.
inline constexpr std::int64_t kMostFunctionRows = std::int64_t{1} << 29;

[[nodiscard]] bool has_functions(const Problem& problem);

/// Whether kernels learn first what mask_mod leaves of each tile (mask_tiles), and skip what it hides: where they go by
/// such ones, tiles are where keys are counted from, and no key is selected.
[[nodiscard]] bool knows_tiles(const Problem& problem, KnownTiles tiles = KnownTiles::of_all_heads);
/// Whether what mask_mod leaves depends on the entry of the batch, or on the head; of a problem that knows tiles.
[[nodiscard]] bool has_tiles_of_entries(const Problem& problem);
[[nodiscard]] bool has_tiles_of_heads(const Problem& problem);

/// What kernels can't take of a problem's functions, as a reason; empty where they can.
[[nodiscard]] std::string functions_refusal(const Problem& problem);
/// The same of kernels that make no calls, where long functions (more than 64 terms) would be called.
[[nodiscard]] std::string calls_refusal(const Problem& problem);

/// The source that stubs have before a kernel (gpu::KernelKey::definitions): a struct ScoreFunctions, in the words of
/// device/attention/score_functions.h and score_bounds.h. Empty without functions. Equal functions of tables of equal
/// dtypes give equal source, whatever the tables' sizes.
[[nodiscard]] std::string function_definitions(const Problem& problem, FunctionUse use = {});

/// The same for bwd_dtable and one of score_mod's look-ups: slope() is score_mod's derivative by what it gives, kTable
/// and kRank are its table's number and dimensions, index0() to index3() say which element it is, and kOneElement
/// whether that is the same one for all scores of a head.
[[nodiscard]] std::string look_up_definitions(const Problem& problem, const expression::LookUpDerivative& look_up);

/// What a table is to kernels (TableElement), of a type that has gradients.
[[nodiscard]] std::int32_t table_element_of(DType dtype);

/// The tables, but for what only a call knows. Of a problem with a block mask the last one has its states.
void set_tables(const Problem& problem, std::span<device::ScoreTable, device::kMostTables> tables);

}  // namespace tilewise::backends::portable
