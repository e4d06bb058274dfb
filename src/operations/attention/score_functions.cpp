// The texts of score_mod and mask_mod as expressions.
#include "operations/attention/score_functions.hpp"

#include <string>
#include <utility>

#include "core/message.hpp"
#include "expression/parse.hpp"

namespace tilewise::operations::attention {
namespace {

const std::string& text_of(const AttentionProblem& problem, ScoreFunction function) {
  return function == ScoreFunction::score_mod ? problem.score_mod : problem.mask_mod;
}

void validate_tables(const AttentionProblem& p) {
  if (p.tables.size() > kMostTables) {
    core::invalid_argument("tables: must be <= ", kMostTables, " (got ", p.tables.size(), ")");
  }
  for (std::size_t i = 0; i < p.tables.size(); ++i) {
    const TableShape& table = p.tables[i];
    (void)expression::table_type(table.dtype, table_name(i));
    check_table_rank(i, table.rank);
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

void check_table_rank(std::size_t index, int rank) {
  if (rank >= 1 && rank <= expression::kTableRank) return;
  core::invalid_argument(table_name(index), ": must have 1 to ", expression::kTableRank, " dimensions (got ", rank,
                         ")");
}

expression::Signature signature_of(ScoreFunction function, std::vector<expression::Table> tables) {
  using enum expression::Type;
  expression::Signature signature{{{"b", integer}, {"h", integer}, {"q_idx", integer}, {"kv_idx", integer}},
                                  std::move(tables)};
  if (function == ScoreFunction::score_mod) signature.variables.insert(signature.variables.begin(), {"score", real});
  return signature;
}

std::optional<expression::Expression> score_function(const AttentionProblem& problem, ScoreFunction function) {
  const std::string& text = text_of(problem, function);
  if (text.empty()) return std::nullopt;
  std::vector<expression::Table> tables;
  for (std::size_t i = 0; i < problem.tables.size(); ++i) {
    tables.push_back({expression::table_type(problem.tables[i].dtype, table_name(i)), problem.tables[i].rank});
  }
  return expression::parse(text, signature_of(function, std::move(tables)), result_of(function),
                           std::string(function_name(function)));
}

void validate_score_functions(const AttentionProblem& problem) {
  validate_tables(problem);
  if (!problem.tables.empty() && problem.score_mod.empty() && problem.mask_mod.empty()) {
    core::invalid_argument("tables: requires score_mod or mask_mod (got ", problem.tables.size(), " without)");
  }
  (void)score_function(problem, ScoreFunction::score_mod);
  (void)score_function(problem, ScoreFunction::mask_mod);
}

void normalise_score_functions(AttentionProblem& problem) {
  if (problem.score_mod.empty() && problem.mask_mod.empty()) return;
  try {
    validate_tables(problem);
    const auto score_mod = score_function(problem, ScoreFunction::score_mod);
    const auto mask_mod = score_function(problem, ScoreFunction::mask_mod);
    if (score_mod) problem.score_mod = to_string(*score_mod);
    if (mask_mod) problem.mask_mod = to_string(*mask_mod);
  } catch (const Error&) {
    return;  // validate() says it
  }
  if (problem.score_mod == "score") problem.score_mod.clear();
  if (problem.mask_mod == "True") problem.mask_mod.clear();
  if (problem.score_mod.empty() && problem.mask_mod.empty()) problem.tables.clear();
}

}  // namespace tilewise::operations::attention
