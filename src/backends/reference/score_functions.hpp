// score_mod and mask_mod as the reference computes them: in double, one score at a time.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>

#include "core/device.hpp"
#include "core/message.hpp"
#include "expression/derivative.hpp"
#include "expression/evaluate.hpp"
#include "operations/score_functions.hpp"

namespace tilewise::backends::reference {

/// A problem's functions, read once.
struct ScoreFunctions {
  std::optional<expression::Expression> score_mod, slope, mask_mod;
  std::size_t table_count;

  explicit ScoreFunctions(const operations::ScoreFunctionTexts& texts)
      : score_mod(score_function(texts, operations::ScoreFunction::score_mod)),
        mask_mod(score_function(texts, operations::ScoreFunction::mask_mod)),
        table_count(texts.tables.size()) {
    if (score_mod) slope = derivative(*score_mod, "score", "score_mod");
  }
};

/// Of one query head of one sequence.
class FunctionsOfHead {
 public:
  FunctionsOfHead(const ScoreFunctions& functions, const TensorView* tables, std::int64_t b, std::int64_t h)
      : b_(b), h_(h), tables_(tables, tables == nullptr ? 0 : functions.table_count) {
    if (functions.mask_mod) mask_.emplace(*functions.mask_mod, tables_);
    if (!functions.score_mod) return;
    score_.emplace(*functions.score_mod, tables_);
    slope_.emplace(*functions.slope, tables_);
    score_mod_ = &*functions.score_mod;
    slope_of_ = &*functions.slope;
  }

  [[nodiscard]] bool visible(std::int64_t i, std::int64_t j) {
    if (!mask_) return true;
    const auto places = inputs(i, j);
    std::uint8_t result = 0;
    (*mask_)(places, 1, &result);
    return result != 0;
  }
  [[nodiscard]] double score(double score, std::int64_t i, std::int64_t j) { return evaluate(*score_, score, i, j); }
  /// score_mod's derivative at `score`.
  [[nodiscard]] double slope(double score, std::int64_t i, std::int64_t j) { return evaluate(*slope_, score, i, j); }

  /// By how much computing in fp32 changes the score and the derivative: for bounds of other implementations' errors.
  [[nodiscard]] std::array<double, 2> lost_in_single(double score, std::int64_t i, std::int64_t j) {
    return {std::abs(in_single(*score_mod_, score, i, j) - evaluate(*score_, score, i, j)),
            std::abs(in_single(*slope_of_, score, i, j) - evaluate(*slope_, score, i, j))};
  }

  [[nodiscard]] bool modifies() const { return score_.has_value(); }

  /// Throws where a look-up of the head was out of range and TILEWISE_CHECK=1 asks.
  void check() const {
    const auto index = out_of_range();
    if (index && core::checks_requested()) core::invalid_argument(to_string(*index));
  }
  /// The first index out of range that a look-up of the head had.
  [[nodiscard]] std::optional<expression::OutOfRange> out_of_range() const {
    if (mask_ && mask_->out_of_range()) return mask_->out_of_range();
    return score_ ? score_->out_of_range() : std::nullopt;
  }

 private:
  using Evaluator = expression::Evaluator<double>;
  using Input = expression::Input<double>;

  [[nodiscard]] std::array<Input, 4> inputs(const std::int64_t& i, const std::int64_t& j) const {
    const auto same = [](const std::int64_t& value) { return Input{.integers = &value, .uniform = true}; };
    return {same(b_), same(h_), same(i), same(j)};
  }
  [[nodiscard]] double evaluate(Evaluator& evaluator, double score, std::int64_t i, std::int64_t j) const {
    const auto places = inputs(i, j);
    const std::array<Input, 5> all{Input{.reals = &score, .uniform = true}, places[0], places[1], places[2], places[3]};
    double result = 0;
    evaluator(all, 1, &result);
    return result;
  }

  [[nodiscard]] double in_single(const expression::Expression& function, double score, std::int64_t i,
                                 std::int64_t j) const {
    expression::Evaluator<float> evaluator(function, tables_);
    const auto single = static_cast<float>(score);
    const auto same = [](const std::int64_t& value) {
      return expression::Input<float>{.integers = &value, .uniform = true};
    };
    const std::array<expression::Input<float>, 5> all{expression::Input<float>{.reals = &single, .uniform = true},
                                                      same(b_), same(h_), same(i), same(j)};
    float result = 0;
    evaluator(all, 1, &result);
    return result;
  }

  std::int64_t b_, h_;
  std::span<const TensorView> tables_;
  std::optional<Evaluator> score_, slope_, mask_;
  const expression::Expression *score_mod_ = nullptr, *slope_of_ = nullptr;
};

}  // namespace tilewise::backends::reference
