// Bounds of functions over blocks; see score_blocks.hpp.
#include "operations/attention/score_blocks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/ceil_div.hpp"
#include "formats/element.hpp"

namespace tilewise::operations::attention {
namespace {

using core::ceil_div;
using expression::Interval;
using expression::Type;

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMostRows = 64;  // of a box that is read for a block

/// A score_mod without it is not worth asking.
bool has_minus_infinity(const expression::Expression& function) {
  return std::ranges::any_of(function.nodes(), [](const expression::Node& node) {
    return node.op == expression::Op::constant && node.type == Type::real && node.real() == -kUnbounded;
  });
}

void unite(std::optional<Interval>& sum, const Interval& more) { sum = sum ? united(*sum, more) : more; }

}  // namespace

TableBounds::TableBounds(const TensorView& view, std::int64_t most) : view_(view) {
  const std::int64_t elements = view.numel();
  if (elements == 0 || elements > most) return;
  const std::int64_t last = view.shape[static_cast<std::size_t>(view.rank - 1)];
  runs_a_row_ = ceil_div(last, kRun);
  runs_.reserve(static_cast<std::size_t>(elements / last * runs_a_row_));
  std::array<std::int64_t, expression::kTableRank> at{};
  for (std::int64_t row = 0; row < elements / last; ++row) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d + 1 < static_cast<std::size_t>(view.rank); ++d) offset += at[d] * view.strides[d];
    const std::int64_t stride = view.strides[static_cast<std::size_t>(view.rank - 1)];
    for (std::int64_t first = 0; first < last; first += kRun) {
      std::optional<Interval> sum;
      for (std::int64_t i = first; i < std::min(last, first + kRun); ++i) unite(sum, element(offset + i * stride));
      runs_.push_back(*sum);
    }
    for (auto d = static_cast<std::size_t>(view.rank - 1); d-- > 0;) {
      if (++at[d] < view.shape[d]) break;
      at[d] = 0;
    }
  }
}

Interval TableBounds::element(std::int64_t offset) const {
  if (view_.dtype == DType::i64) {
    const std::int64_t value = static_cast<const std::int64_t*>(view_.data)[offset];
    return Interval::of_integers(value, value);
  }
  const double value = formats::load_element(view_.dtype, view_.data, offset);
  const Type type = expression::table_type(view_.dtype, "table");
  if (type == Type::boolean) return Interval::of_integers(value != 0.0 ? 1 : 0, value != 0.0 ? 1 : 0);
  if (type == Type::integer) {
    return Interval::of_integers(static_cast<std::int64_t>(value), static_cast<std::int64_t>(value));
  }
  // Kernels may round a number of f64 to f32.
  if (std::isnan(value) || static_cast<double>(static_cast<float>(value)) != value) {
    return Interval::of_reals(-kUnbounded, kUnbounded, true);
  }
  return Interval::of_reals(value, value);
}

Interval TableBounds::of(std::span<const Interval> indices) const {
  const Type type = expression::table_type(view_.dtype, "table");
  std::array<std::int64_t, expression::kTableRank> begin{}, end{};
  bool beyond = false, empty = false;
  std::int64_t rows = 1;
  for (std::size_t d = 0; d < indices.size(); ++d) {
    const std::int64_t last = view_.shape[d] - 1;
    beyond = beyond || indices[d].low < 0 || indices[d].high > last;
    begin[d] = std::max<std::int64_t>(indices[d].low, 0);
    end[d] = std::min(indices[d].high, last) + 1;
    empty = empty || begin[d] >= end[d];
    if (d + 1 < indices.size() && !empty) rows *= std::min(end[d] - begin[d], kMostRows + 1);
  }
  std::optional<Interval> sum;
  if (beyond) sum = Interval{};  // what an index out of range reads
  if (empty) return *sum;
  if (runs_.empty() || rows > kMostRows) return expression::any_of(type);
  const std::size_t last = indices.size() - 1;
  for (std::int64_t n = 0; n < rows; ++n) {
    std::int64_t offset = 0, row = 0, rest = n;
    std::array<std::int64_t, expression::kTableRank> at{};
    for (std::size_t d = last; d-- > 0; rest /= end[d] - begin[d]) at[d] = begin[d] + rest % (end[d] - begin[d]);
    for (std::size_t d = 0; d < last; ++d) {
      offset += at[d] * view_.strides[d];
      row = row * view_.shape[d] + at[d];
    }
    add_row(begin[last], end[last], offset, row, sum);
  }
  return *sum;
}

/// Runs that are asked for in part are read.
void TableBounds::add_row(std::int64_t begin, std::int64_t end, std::int64_t offset, std::int64_t row,
                          std::optional<Interval>& sum) const {
  const std::int64_t stride = view_.strides[static_cast<std::size_t>(view_.rank - 1)];
  const std::int64_t size = view_.shape[static_cast<std::size_t>(view_.rank - 1)];
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t run_end = std::min(size, (i / kRun + 1) * kRun);
    if (i % kRun == 0 && run_end <= end) {
      unite(sum, runs_[static_cast<std::size_t>((row * runs_a_row_) + i / kRun)]);
      i = run_end;
    } else {
      for (const std::int64_t last = std::min(run_end, end); i < last; ++i) unite(sum, element(offset + i * stride));
    }
  }
}

ScoreBlocks::ScoreBlocks(const expression::Expression* score_mod, const expression::Expression* mask_mod,
                         std::span<const TensorView> tables, std::int64_t most_elements)
    : score_mod_(score_mod != nullptr && has_minus_infinity(*score_mod) ? score_mod : nullptr),
      mask_mod_(mask_mod),
      tables_(tables.size()) {
  if (mask_mod == nullptr) return;
  for (const expression::Node& node : mask_mod->nodes()) {
    if (node.op == expression::Op::lookup && !tables_[node.index])
      tables_[node.index].emplace(tables[node.index], most_elements);
  }
}

Visibility ScoreBlocks::of(const ScoreBlock& block) const {
  const auto between = [](std::int64_t begin, std::int64_t end) { return Interval::of_integers(begin, end - 1); };
  const std::array inputs{Interval::of_reals(-kUnbounded, kUnbounded, true), between(block.b, block.b + 1),
                          between(block.h_begin, block.h_end), between(block.q_begin, block.q_end),
                          between(block.k_begin, block.k_end)};
  Visibility visibility = Visibility::all;
  if (mask_mod_ != nullptr) {
    const auto look_up = [this](std::uint32_t table, std::span<const Interval> indices) {
      return tables_[table]->of(indices);
    };
    const Interval visible = expression::bounds(*mask_mod_, std::span(inputs).subspan(1), look_up);
    if (visible.never()) return Visibility::none;
    if (!visible.always()) visibility = Visibility::some;
  }
  if (score_mod_ != nullptr) {
    const Interval score = expression::bounds(*score_mod_, inputs);
    if (!score.may_be_nan && score.real_high == -kUnbounded) return Visibility::none;
  }
  return visibility;
}

void ScoreBlocks::of_each(const ScoreBlock& block, std::int64_t step, Visibility* results) const {
  const std::int64_t count = ceil_div(block.k_end - block.k_begin, step);
  const Visibility visibility = of(block);
  // Within a block that mask_mod leaves alone, score_mod may still hide a part.
  const bool alike = visibility == Visibility::none || (visibility == Visibility::all && score_mod_ == nullptr);
  if (alike || count == 1) {
    std::fill_n(results, count, visibility);
    return;
  }
  ScoreBlock first = block, rest = block;
  first.k_end = rest.k_begin = block.k_begin + count / 2 * step;
  of_each(first, step, results);
  of_each(rest, step, results + count / 2);
}

VisibleKeys ScoreBlocks::seen(const ScoreBlock& block) const {
  constexpr std::int64_t kFinestStep = 32, kMostSteps = 64;
  std::int64_t step = kFinestStep;
  while (ceil_div(block.k_end - block.k_begin, step) > kMostSteps) step *= 2;
  ScoreBlock aligned = block;
  aligned.k_begin = block.k_begin / step * step;
  const std::int64_t count = ceil_div(block.k_end - aligned.k_begin, step);
  std::array<Visibility, kMostSteps + 1> visible;
  of_each(aligned, step, visible.data());
  VisibleKeys seen{{block.k_end, block.k_begin}, {}};
  device::KeyRange run{};
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t begin = std::max(aligned.k_begin + n * step, block.k_begin);
    const std::int64_t end = std::min(aligned.k_begin + (n + 1) * step, block.k_end);
    const Visibility here = visible[static_cast<std::size_t>(n)];
    if (here != Visibility::none) seen.some = {std::min(seen.some.begin, begin), end};
    if (here != Visibility::all) continue;
    run = {run.begin < run.end && run.end == begin ? run.begin : begin, end};
    if (run.end - run.begin > seen.all.end - seen.all.begin) seen.all = run;
  }
  return seen;
}

}  // namespace tilewise::operations::attention
