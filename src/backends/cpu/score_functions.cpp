// score_mod and mask_mod of a problem; see score_functions.hpp.
#include "backends/cpu/score_functions.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/rows.hpp"
#include "expression/derivative.hpp"
#include "formats/element.hpp"
#include "operations/attention/factors.hpp"

namespace tilewise::backends::cpu {
namespace {

using expression::Interval;
using operations::attention::ScoreFunction;

/// Keys that kernels may ask for beyond the last one: less than a block.
constexpr std::int64_t kKeysBeyond = 4096;

/// Of places in a problem's tensors.
std::vector<Interval> bounds_of_variables(const ScoreSizes& p, const expression::Signature& signature) {
  const auto below = [](std::int64_t size) { return Interval::of_integers(0, size > 0 ? size - 1 : 0); };
  constexpr double kUnbounded = std::numeric_limits<double>::infinity();
  const Interval queries = p.positions ? Interval::of_integers(-p.seqlen_q, p.seqlen_k) : below(p.seqlen_q);
  std::vector<Interval> bounds{below(p.batch_size), below(p.num_heads_q), queries, below(p.seqlen_k + kKeysBeyond)};
  if (signature.variables.size() > bounds.size())
    bounds.insert(bounds.begin(), Interval::of_reals(-kUnbounded, kUnbounded, true));
  return bounds;
}

template <DType dtype>
double load(const void* data, std::int64_t index) {
  return formats::load_element(dtype, data, index);
}

/// The element type, and its loader where it is a float.
void set_element(DType dtype, CapturedTable& table) {
  const auto set = [&table](TableElement element, double (*loader)(const void*, std::int64_t)) {
    table.element = element;
    table.load = loader;
  };
  switch (dtype) {
    case DType::bf16:
      return set(TableElement::bf16, &load<DType::bf16>);
    case DType::f16:
      return set(TableElement::f16, &load<DType::f16>);
    case DType::f64:
      return set(TableElement::f64, &load<DType::f64>);
    case DType::fp8_e4m3:
      return set(TableElement::e4m3, &load<DType::fp8_e4m3>);
    case DType::fp8_e5m2:
      return set(TableElement::e5m2, &load<DType::fp8_e5m2>);
    case DType::u8:
      return set(TableElement::u8, nullptr);
    case DType::i32:
      return set(TableElement::i32, nullptr);
    case DType::i64:
      return set(TableElement::i64, nullptr);
    case DType::boolean:
      return set(TableElement::boolean, nullptr);
    default:
      return set(TableElement::f32, &load<DType::f32>);
  }
}

CapturedTable captured_table(const TensorView& view) {
  CapturedTable table{};
  table.data = view.data;
  set_element(view.dtype, table);
  double reach = 0.0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
    table.shape[d] = view.shape[d];
    table.strides[d] = view.strides[d];
    // Indices are words wherever they are 32 bits, so sizes and steps must be too; vectors of them wrap around.
    reach += std::abs(static_cast<double>(view.strides[d])) * static_cast<double>(view.shape[d]);
    reach = std::max(reach, static_cast<double>(view.shape[d]));
  }
  table.in_words = reach < static_cast<double>(std::numeric_limits<std::int32_t>::max());
  return table;
}

/// Of a table, for bounds of its elements: far fewer than there are scores.
std::int64_t elements_worth_reading(const ScoreSizes& p) {
  constexpr double kScoresAnElement = 32.0;
  constexpr std::int64_t kMost = 1 << 24;
  const auto f = [](std::int64_t n) { return static_cast<double>(n); };
  const double scores = f(p.batch_size) * f(p.num_heads_q) * f(p.seqlen_q) * f(p.seqlen_k);
  return static_cast<std::int64_t>(std::min(scores / kScoresAnElement, f(kMost)));
}

/// score_mod's derivative, where gradients are computed.
std::optional<expression::Expression> score_slope(const Problem& problem) {
  if (problem.operation != Operation::attention_backward) return std::nullopt;
  const auto score_mod = score_function(problem, ScoreFunction::score_mod);
  return score_mod ? std::optional(derivative(*score_mod, "score", "score_mod")) : std::nullopt;
}

}  // namespace

CompiledFunctions::CompiledFunctions(const Problem& problem) : CompiledFunctions(problem, score_slope(problem)) {}

CompiledFunctions::CompiledFunctions(const Problem& problem, const expression::Expression& slope)
    : CompiledFunctions(problem, std::optional(slope)) {}

CompiledFunctions::CompiledFunctions(const Problem& problem, const std::optional<expression::Expression>& slope)
    : CompiledFunctions(problem, {problem.batch_size, problem.num_heads_q, problem.seqlen_q, problem.seqlen_k},
                        real_size(element_of(problem.dtype)), slope ? &*slope : nullptr) {}

CompiledFunctions::CompiledFunctions(const operations::ScoreFunctionTexts& texts, const ScoreSizes& sizes,
                                     std::size_t real_bytes, const expression::Expression* slope)
    : sizes_(sizes),
      score_mod_(score_function(texts, ScoreFunction::score_mod)),
      mask_mod_(score_function(texts, ScoreFunction::mask_mod)) {
  for (const TableShape& table : texts.tables) table_dtypes_.push_back(table.dtype);
  const auto compiled = [&](const expression::Expression& function, const expression::Expression* of_scores) {
    return std::make_unique<CompiledProgram>(function, of_scores,
                                             ProgramInputs{bounds_of_variables(sizes, function.signature()),
                                                           table_dtypes_, static_cast<std::int64_t>(real_bytes)});
  };
  if (score_mod_) score_program_ = compiled(*score_mod_, slope);
  if (mask_mod_) mask_program_ = compiled(*mask_mod_, nullptr);
}

ScoreFunctions CompiledFunctions::bind(const TensorView* given, CapturedTables& captured) const {
  ScoreFunctions functions{};
  if (!score_mod_ && !mask_mod_) return functions;
  const std::span<const TensorView> tables(given, table_dtypes_.size());
  std::ranges::transform(tables, captured.tables.begin(), captured_table);
  functions.score_mod = score_program_ ? &score_program_->program() : nullptr;
  functions.mask_mod = mask_program_ ? &mask_program_->program() : nullptr;
  functions.tables = captured.tables.data();
  functions.num_heads_q = sizes_.num_heads_q;
  captured.blocks.emplace(score_mod_ ? &*score_mod_ : nullptr, mask_mod_ ? &*mask_mod_ : nullptr, tables,
                          elements_worth_reading(sizes_));
  functions.blocks = &*captured.blocks;
  return functions;
}

ProblemScores::ProblemScores(const Problem& problem)
    : factors_(operations::attention::score_factors(problem)), functions_(problem) {}

ScoreParams ProblemScores::bind(const device::AttentionParams& p, CapturedTables& captured) const {
  ScoreParams score = make_score_params(p, factors_);
  score.functions = functions_.bind(p.tables, captured);
  return score;
}

void narrow_rows(const operations::attention::ScoreBlocks& functions, const operations::attention::ScoreBlock& block,
                 RowInfo* rows, std::int64_t head_stride) {
  constexpr std::int64_t kNarrowedRows = 16;  // as many as kernels look at together
  for (std::int64_t first = block.q_begin; first < block.q_end; first += kNarrowedRows) {
    operations::attention::ScoreBlock part = block;
    part.q_begin = first;
    part.q_end = std::min(first + kNarrowedRows, block.q_end);
    const auto each_row = [&](const auto& visit) {
      for (std::int64_t h = 0; h < block.h_end - block.h_begin; ++h)
        for (std::int64_t i = part.q_begin; i < part.q_end; ++i) visit(rows[h * head_stride + i - block.q_begin]);
    };
    device::KeyRange asked{block.k_end, block.k_begin};
    each_row([&](const RowInfo& row) {
      if (row.key_begin >= row.key_end) return;
      asked = {std::min<std::int64_t>(asked.begin, row.key_begin), std::max<std::int64_t>(asked.end, row.key_end)};
    });
    part.k_begin = std::max(asked.begin, block.k_begin);
    part.k_end = std::min(asked.end, block.k_end);
    if (part.k_begin >= part.k_end) continue;
    const operations::attention::VisibleKeys seen = functions.seen(part);
    each_row([&](RowInfo& row) {
      row.key_begin = std::max(row.key_begin, static_cast<std::int32_t>(seen.some.begin));
      row.key_end = std::min(row.key_end, static_cast<std::int32_t>(seen.some.end));
      row.whole_begin = static_cast<std::int32_t>(seen.all.begin);
      row.whole_end = static_cast<std::int32_t>(seen.all.end);
    });
  }
}

void* function_memory(const ScoreFunctions& functions) {
  const auto bytes = [](const ScoreProgram* program) { return program == nullptr ? 0 : program->memory; };
  const std::int64_t all = bytes(functions.score_mod) + bytes(functions.mask_mod);
  return all == 0 ? nullptr : thread_memory(ThreadMemory::functions, static_cast<std::size_t>(all));
}

}  // namespace tilewise::backends::cpu
