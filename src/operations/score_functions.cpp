// The texts of score_mod and mask_mod as expressions.
#include "operations/score_functions.hpp"

#include <utility>

#include "core/message.hpp"
#include "expression/parse.hpp"

namespace tilewise::operations {
namespace {

void validate_tables(std::span<const TableShape> tables) {
  if (tables.size() > kMostTables) {
    core::invalid_argument("tables: must be <= ", kMostTables, " (got ", tables.size(), ")");
  }
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const TableShape& table = tables[i];
    (void)expression::table_type(table.dtype, table_name(i));
    check_table_rank(table_name(i), table.rank);
    auto bytes = static_cast<std::int64_t>(size_of(table.dtype));
    for (std::size_t d = 0; d < static_cast<std::size_t>(table.rank); ++d) {
      const std::int64_t size = table.shape[d];
      if (size < 0 || __builtin_mul_overflow(bytes, size == 0 ? 1 : size, &bytes)) {
        core::invalid_argument(table_name(i), ": must have sizes >= 0 and less than 2^63 bytes (got size ", size,
                               " in dimension ", d, ")");
      }
    }
  }
}

}  // namespace

static_assert(kMostTableDimensions == expression::kTableRank);

expression::Signature signature_of(ScoreFunction function, std::vector<expression::Table> tables) {
  using enum expression::Type;
  expression::Signature signature{{{"b", integer}, {"h", integer}, {"q_idx", integer}, {"kv_idx", integer}},
                                  std::move(tables)};
  if (function == ScoreFunction::score_mod) signature.variables.insert(signature.variables.begin(), {"score", real});
  return signature;
}

std::optional<expression::Expression> score_function(const ScoreFunctionTexts& texts, ScoreFunction function) {
  const std::string_view text = function == ScoreFunction::score_mod ? texts.score_mod : texts.mask_mod;
  if (text.empty()) return std::nullopt;
  std::vector<expression::Table> tables;
  for (std::size_t i = 0; i < texts.tables.size(); ++i) {
    tables.push_back({expression::table_type(texts.tables[i].dtype, table_name(i)), texts.tables[i].rank});
  }
  return expression::parse(text, signature_of(function, std::move(tables)), result_of(function),
                           std::string(function_name(function)));
}

void validate_score_functions(const ScoreFunctionTexts& texts) {
  validate_tables(texts.tables);
  if (!texts.tables.empty() && texts.empty()) {
    core::invalid_argument("tables: requires score_mod or mask_mod (got ", texts.tables.size(), " without)");
  }
  (void)score_function(texts, ScoreFunction::score_mod);
  (void)score_function(texts, ScoreFunction::mask_mod);
}

bool normalise_texts(std::string& score_mod, std::string& mask_mod, const std::vector<TableShape>& tables) {
  const ScoreFunctionTexts texts{score_mod, mask_mod, tables};
  if (texts.empty()) return false;
  try {
    validate_tables(tables);
    const auto score = score_function(texts, ScoreFunction::score_mod);
    const auto mask = score_function(texts, ScoreFunction::mask_mod);
    if (score) score_mod = to_string(*score);
    if (mask) mask_mod = to_string(*mask);
  } catch (const Error&) {
    return false;  // validate() says it
  }
  return true;
}

void normalise_score_functions(std::string& score_mod, std::string& mask_mod, std::vector<TableShape>& tables) {
  if (!normalise_texts(score_mod, mask_mod, tables)) return;
  if (score_mod == "score") score_mod.clear();
  if (mask_mod == "True") mask_mod.clear();
  if (score_mod.empty() && mask_mod.empty()) tables.clear();
}

}  // namespace tilewise::operations
