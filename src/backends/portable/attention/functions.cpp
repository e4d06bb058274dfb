// Functions of scores as source; see functions.hpp.
#include "backends/portable/attention/functions.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <vector>

#include "core/message.hpp"
#include "device/attention/config.h"
#include "expression/bounds_source.hpp"
#include "expression/derivative.hpp"
#include "expression/device_source.hpp"
#include "operations/attention/score_functions.hpp"
#include "operations/block_mask.hpp"

namespace tilewise::backends::portable {
namespace {

using core::concat;
using expression::DeviceTable, expression::Expression, expression::Interval;
using operations::attention::function_name, operations::attention::ScoreFunction;

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

bool is_one(const Expression& function) {
  const expression::Node& result = function.result();
  return result.op == expression::Op::constant && result.type == expression::Type::real && result.real() == 1.0;
}

/// What each variable of a signature may be.
std::vector<Interval> variable_bounds(const Problem& p, const Expression& function, QueryIndex query_index) {
  // Longer sequences are refused, and so are more heads and sequences than 32 bits count. Of shorter ones floats hold
  // differences; tiles end behind them.
  constexpr std::int64_t kShort = std::int64_t{1} << 22, kMost = std::numeric_limits<std::int32_t>::max();
  const bool at_positions = query_index == QueryIndex::position;
  const bool is_short = !at_positions && std::max(p.seqlen_q, p.seqlen_k) <= kShort;
  const std::int64_t rows = is_short ? 2 * kShort : kMostFunctionRows;
  std::vector<Interval> bounds;
  for (const expression::Variable& variable : function.signature().variables) {
    if (variable.name == "score") {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      bounds.push_back(Interval::of_reals(-kInfinity, kInfinity, true));
    } else {
      const bool before_first = at_positions && variable.name == "q_idx";
      bounds.push_back(Interval::of_integers(before_first ? -rows : 0, variable.name.ends_with("_idx") ? rows : kMost));
    }
  }
  return bounds;
}

/// More are a function of its own in the kernel, which each score calls: compilers take long for a tile's scores side
/// by side (27 s of 256 terms, 2 s of a function).
constexpr std::size_t kMostInlineTerms = 64;

/// A function as kernels call it.
struct Method {
  ScoreFunction of;
  std::string_view type, name, score;  // the last one: its parameter, if any
};

std::string text_of(const Problem& p, const Method& method, const Expression& function, QueryIndex query_index,
                    std::span<const DeviceTable> tables) {
  const bool is_inline = function.nodes().size() <= kMostInlineTerms;
  return concat("  template <class Machine, class Query, class Key>\n  ",
                is_inline ? "TILEWISE_INLINE" : "__attribute__((noinline))", " static ", method.type, " ", method.name,
                "(const ScoreTable (&tables)[kMostTables], ", method.score,
                "int32_t b, int32_t h, Query q_idx, Key kv_idx) {\n",
                expression::device_source(function, variable_bounds(p, function, query_index), tables), "  }\n");
}

/// mask_mod's bounds in a tile, where they may decide it.
std::string bounds_text(const Problem& p, const Expression& mask_mod, QueryIndex query_index,
                        std::span<const DeviceTable> tables) {
  if (mask_mod.nodes().size() > kMostInlineTerms) return {};
  const std::string statements = expression::bounds_source(mask_mod, variable_bounds(p, mask_mod, query_index), tables);
  if (statements.empty()) return {};
  return concat(
      "  static constexpr bool kBounded = true;\n  template <class Machine>\n",
      "  TILEWISE_INLINE static Bounds sees_within([[maybe_unused]] const ScoreTable (&tables)[kMostTables], ",
      "[[maybe_unused]] const Bounds& b,\n      [[maybe_unused]] const Bounds& h, [[maybe_unused]] const ",
      "Bounds& q_idx, [[maybe_unused]] const Bounds& kv_idx) {\n", statements, "  }\n");
}

/// visit(method, expression) for each that kernels of the problem's pass have.
template <typename Visit>
void for_each_function(const Problem& p, const Visit& visit) {
  constexpr std::string_view kScore = "float score, ";
  if (const auto score_mod = score_function(p, ScoreFunction::score_mod)) {
    visit(Method{ScoreFunction::score_mod, "float", "score", kScore}, *score_mod);
    if (is_backward(p)) {
      visit(Method{ScoreFunction::score_mod, "float", "slope", kScore}, derivative(*score_mod, "score", "score_mod"));
    }
  }
  if (const auto mask_mod = score_function(p, ScoreFunction::mask_mod)) {
    visit(Method{ScoreFunction::mask_mod, "bool", "sees", ""}, *mask_mod);
  }
}

}  // namespace

bool has_functions(const Problem& p) { return !p.score_mod.empty() || !p.mask_mod.empty(); }

bool knows_tiles(const Problem& p, KnownTiles tiles) {
  if (p.top_k > 0 || p.leftpad_k || tiles == KnownTiles::none) return false;
  const auto mask_mod = score_function(p, ScoreFunction::mask_mod);
  return mask_mod && (tiles == KnownTiles::of_each_head || !mask_mod->speaks_of("h"));
}

bool has_tiles_of_entries(const Problem& p) { return score_function(p, ScoreFunction::mask_mod)->speaks_of("b"); }
bool has_tiles_of_heads(const Problem& p) { return score_function(p, ScoreFunction::mask_mod)->speaks_of("h"); }

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

std::string calls_refusal(const Problem& p) {
  std::string refusal;
  for_each_function(p, [&](const Method& method, const Expression& function) {
    const std::size_t terms = function.nodes().size();
    if (terms <= kMostInlineTerms || !refusal.empty()) return;
    refusal = concat(function_name(method.of), ": ", method.name == "slope" ? "its derivative" : "it",
                     " must have <= ", kMostInlineTerms, " terms (got ", terms, ")");
  });
  return refusal;
}

namespace {

/// `look_up`: null, or the one whose gradient a kernel adds up: its slope is then the score's.
std::string definitions(const Problem& p, const FunctionUse& use, const expression::LookUpDerivative* look_up) {
  const QueryIndex query_index = use.query_index;
  const std::vector<DeviceTable> tables = device_tables(p);
  constexpr std::string_view kSkips = "  static constexpr bool kSkips = true;\n",
                             kOfHeads = "  static constexpr bool kSkipsByHead = true;\n";
  std::string comments, members;
  if (query_index == QueryIndex::position) members += "  static constexpr bool kAtPositions = true;\n";
  const bool skips = look_up == nullptr && knows_tiles(p, use.tiles);
  for_each_function(p, [&](const Method& method, const Expression& function) {
    const Expression& used = method.name == "slope" && look_up != nullptr ? look_up->slope : function;
    if (method.name == "score") members += "  static constexpr bool kModifies = true;\n";
    if (method.name == "slope") {
      members += concat("  static constexpr bool kSloped = ", is_one(used) ? "false" : "true", ";\n");
    }
    if (method.name == "sees") members += "  static constexpr bool kHides = true;\n";
    if (method.name == "sees" && skips) {
      members += concat(kSkips, has_tiles_of_heads(p) ? kOfHeads : "", bounds_text(p, function, query_index, tables));
    }
    if (method.name != "slope") comments += concat("// ", function_name(method.of), ": ", to_string(function), "\n");
    members += text_of(p, method, used, query_index, tables);
  });
  if (look_up != nullptr) {
    const std::size_t rank = look_up->indices.size();
    members += concat("  static constexpr int kTable = ", look_up->table, ", kRank = ", rank, ";\n");
    const bool one_element = std::ranges::none_of(look_up->indices, [](const Expression& index) {
      return index.speaks_of("q_idx") || index.speaks_of("kv_idx");
    });
    members += concat("  static constexpr bool kOneElement = ", one_element ? "true" : "false", ";\n");
    for (std::size_t d = 0; d < rank; ++d) {
      const std::string name = concat("index", d);
      members += text_of(p, {ScoreFunction::score_mod, "auto", name, ""}, look_up->indices[d], query_index, tables);
    }
  }
  // The name is the same in every stub: what is made of it must not be shared between modules of one process.
  return concat(comments,
                "#include \"device/attention/score_bounds.h\"\n"
                "namespace tilewise::device {\nnamespace {\nstruct ScoreFunctions : TabledFunctions {\n",
                members, "};\n}  // namespace\n}  // namespace tilewise::device\n");
}

}  // namespace

std::string function_definitions(const Problem& p, FunctionUse use) {
  return has_functions(p) ? definitions(p, use, nullptr) : std::string();
}

std::string look_up_definitions(const Problem& p, const expression::LookUpDerivative& look_up) {
  return definitions(p, {}, &look_up);
}

std::int32_t table_element_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return device::kTableBf16;
    case DType::f16:
      return device::kTableF16;
    case DType::f64:
      return device::kTableF64;
    default:
      return device::kTableF32;
  }
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
  if (!operations::has_block_mask(p)) return;
  device::ScoreTable& states = tables[p.tables.size() - 1];
  states.of_blocks = 1;
  std::int64_t stride = 1;
  for (std::size_t d = std::size(states.sizes); d-- > 0; stride *= states.sizes[d]) states.strides[d] = stride;
}

}  // namespace tilewise::backends::portable
