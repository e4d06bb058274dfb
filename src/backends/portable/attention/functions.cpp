// Functions of scores as source; see functions.hpp.
#include "backends/portable/attention/functions.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <vector>

#include "core/message.hpp"
#include "expression/derivative.hpp"
#include "expression/device_source.hpp"
#include "operations/attention/score_functions.hpp"

namespace tilewise::backends::portable {
namespace {

using core::concat;
using expression::DeviceTable, expression::Expression, expression::Interval;
using operations::attention::ScoreFunction;

static_assert(device::kMostTables == operations::attention::kMostTables);

bool is_backward(const Problem& p) { return p.operation == Operation::attention_backward; }

std::vector<DeviceTable> device_tables(const Problem& p) {
  std::vector<DeviceTable> tables;
  for (const TableShape& table : p.tables) {
    const auto sizes = std::span(table.shape).first(static_cast<std::size_t>(table.rank));
    tables.push_back({table.dtype, std::ranges::find(sizes, 0) != sizes.end()});
  }
  return tables;
}

/// What each variable of a signature may be.
std::vector<Interval> variable_bounds(const Expression& function) {
  // Longer sequences are refused, and so are more heads and sequences than 32 bits count.
  constexpr std::int64_t kMostRows = std::int64_t{1} << 29, kMost = std::numeric_limits<std::int32_t>::max();
  std::vector<Interval> bounds;
  for (const expression::Variable& variable : function.signature().variables) {
    if (variable.name == "score") {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      bounds.push_back(Interval::of_reals(-kInfinity, kInfinity, true));
    } else {
      bounds.push_back(Interval::of_integers(0, variable.name.ends_with("_idx") ? kMostRows : kMost));
    }
  }
  return bounds;
}

/// More are a function of its own in the kernel, which each score calls: compilers take long for a tile's scores side
/// by side (27 s of 256 terms, 2 s of a function).
constexpr std::size_t kMostInlineTerms = 64;

std::string method(std::string_view type, std::string_view name, std::string_view score, const Expression& function,
                   std::span<const DeviceTable> tables) {
  const bool is_inline = function.nodes().size() <= kMostInlineTerms;
  return concat("  template <class Machine>\n  ", is_inline ? "TILEWISE_INLINE" : "__attribute__((noinline))",
                " static ", type, " ", name, "(const ScoreTable (&tables)[kMostTables], ", score,
                "int32_t b, int32_t h, int32_t q_idx, int32_t kv_idx) {\n",
                expression::device_source(function, variable_bounds(function), tables), "  }\n");
}

}  // namespace

bool has_functions(const Problem& p) { return !p.score_mod.empty() || !p.mask_mod.empty(); }

bool knows_tiles(const Problem& p) {
  const auto mask_mod = score_function(p, ScoreFunction::mask_mod);
  return mask_mod && !mask_mod->speaks_of("h") && !p.leftpad_k;
}

bool has_tiles_of_entries(const Problem& p) { return score_function(p, ScoreFunction::mask_mod)->speaks_of("b"); }

std::string functions_refusal(const Problem& p) {
  for (std::size_t i = 0; i < p.tables.size(); ++i) {
    for (const std::int64_t size : p.tables[i].shape) {
      if (size > std::numeric_limits<std::int32_t>::max()) {
        return concat(operations::attention::table_name(i), ": sizes must be < 2^31 (got ", size, ")");
      }
    }
  }
  return {};
}

std::string function_definitions(const Problem& p) {
  if (!has_functions(p)) return {};
  const std::vector<DeviceTable> tables = device_tables(p);
  std::string comments, members;
  if (const auto score_mod = score_function(p, ScoreFunction::score_mod)) {
    comments += concat("// score_mod: ", to_string(*score_mod), "\n");
    members += "  static constexpr bool kModifies = true;\n";
    members += method("float", "score", "float score, ", *score_mod, tables);
    if (is_backward(p)) {
      const Expression slope = derivative(*score_mod, "score", "score_mod");
      members += method("float", "slope", "float score, ", slope, tables);
    }
  }
  if (const auto mask_mod = score_function(p, ScoreFunction::mask_mod)) {
    comments += concat("// mask_mod: ", to_string(*mask_mod), "\n");
    members += "  static constexpr bool kHides = true;\n";
    if (knows_tiles(p)) members += "  static constexpr bool kSkips = true;\n";
    members += method("bool", "sees", "", *mask_mod, tables);
  }
  // The name is the same in every stub: what is made of it must not be shared between modules of one process.
  return concat(comments,
                "#include \"device/attention/score_functions.h\"\n"
                "namespace tilewise::device {\nnamespace {\nstruct ScoreFunctions : TabledFunctions {\n",
                members, "};\n}  // namespace\n}  // namespace tilewise::device\n");
}

void set_tables(const Problem& p, std::span<device::ScoreTable, device::kMostTables> tables) {
  for (std::size_t i = 0; i < p.tables.size(); ++i) {
    const TableShape& from = p.tables[i];
    device::ScoreTable& table = tables[i];
    table.element_bytes = static_cast<std::int32_t>(size_of(from.dtype));
    std::ranges::fill(table.sizes, 1);
    for (std::size_t d = 0; d < static_cast<std::size_t>(from.rank); ++d) {
      table.sizes[d] = static_cast<std::int32_t>(from.shape[d]);
    }
  }
}

}  // namespace tilewise::backends::portable
