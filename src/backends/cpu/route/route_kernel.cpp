// Tokens in blocks; of each the choice by integers that order as the scores do, which settles NaN and ties.
#include "backends/cpu/route/route_kernel.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "backends/cpu/rows.hpp"
#include "core/ceil_div.hpp"
#include "core/parallel.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::cpu {
namespace {

using operations::load_element;
using operations::route::ChosenBy, operations::route::GroupValue, operations::route::Normalise;
using operations::route::OutsideGroups, operations::route::RouteParams, operations::route::Score;
using operations::route::Weigh;

/// Orders as the numbers do, the two zeros alike and any NaN above all.
std::uint32_t key_of(float value) {
  if (value != value) return std::numeric_limits<std::uint32_t>::max();
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0f);  // -0 becomes 0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/// A candidate as one integer: what is greater comes first, and of ties the lower index.
std::uint64_t candidate(std::uint32_t key, std::int64_t index) {
  return std::uint64_t{key} << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(index));
}
std::int64_t index_of(std::uint64_t candidate) {
  return 0xFFFFFFFF - static_cast<std::int64_t>(candidate & 0xFFFFFFFFu);
}

/// Leaves the `count` greatest of `size` candidates in front, in descending order.
void choose(std::uint64_t* candidates, std::int64_t size, std::int64_t count) {
  std::partial_sort(candidates, candidates + count, candidates + size, std::greater<>());
}

/// What a task keeps of one token.
struct Token {
  std::uint64_t *candidates, *groups;
  double* scores;
  float *logits, *choice;

  Token(const RouteParams& p, void* memory) {
    candidates = static_cast<std::uint64_t*>(memory);
    groups = candidates + p.logits.columns;
    scores = reinterpret_cast<double*>(groups + p.n_group);
    logits = reinterpret_cast<float*>(scores + p.logits.columns);
    choice = logits + p.logits.columns;
  }
  static std::size_t bytes(const RouteParams& p) {
    return static_cast<std::size_t>(p.logits.columns) * 24 + static_cast<std::size_t>(p.n_group) * 8;
  }
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// In place. A NaN makes all of them NaN.
void softmax(double* values, std::int64_t count) {
  double greatest = values[0], sum = 0;
  for (std::int64_t i = 1; i < count; ++i) greatest = values[i] > greatest ? values[i] : greatest;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i] = std::exp(values[i] - greatest);
  for (std::int64_t i = 0; i < count; ++i) values[i] /= sum;
}

void score(const RouteParams& p, const Token& t) {
  const std::int64_t experts = p.logits.columns;
  for (std::int64_t e = 0; e < experts; ++e) {
    const double x = t.logits[e];
    if (p.score == Score::sigmoid)
      t.scores[e] = sigmoid(x);
    else if (p.score == Score::sqrt_softplus)
      t.scores[e] = std::sqrt((x > 0 ? x : 0) + std::log1p(std::exp(-std::abs(x))));
    else
      t.scores[e] = x;
  }
  if (p.score == Score::softmax) softmax(t.scores, experts);
}

/// Experts outside of the chosen groups can win no more, or by 0.
void limit_to_groups(const RouteParams& p, const Token& t) {
  const std::int64_t size = p.logits.columns / p.n_group;
  for (std::int64_t g = 0; g < p.n_group; ++g) {
    const float* members = t.choice + g * size;
    float best = members[0], second = members[0];
    bool has_second = false;
    for (std::int64_t i = 1; i < size; ++i) {
      const bool greater = key_of(members[i]) > key_of(best);
      const float other = greater ? best : members[i];
      if (!has_second || key_of(other) > key_of(second)) second = other;
      has_second = true;
      if (greater) best = members[i];
    }
    const bool sums = p.group_value == GroupValue::sum_of_two && has_second;
    t.groups[g] = candidate(key_of(sums ? best + second : best), g);
  }
  choose(t.groups, p.n_group, p.topk_group);
  const float outside = p.outside_groups == OutsideGroups::zero ? 0.0f : -std::numeric_limits<float>::infinity();
  for (std::int64_t i = p.topk_group; i < p.n_group; ++i) {
    std::fill_n(t.choice + index_of(t.groups[i]) * size, size, outside);
  }
}

/// Leaves the chosen experts in front of the candidates.
void choose(const RouteParams& p, std::int64_t token, const Token& t) {
  const std::int64_t experts = p.logits.columns;
  for (std::int64_t e = 0; e < experts; ++e) {
    t.logits[e] = static_cast<float>(
        load_element(p.logits.dtype, p.logits.data, token * p.logits.row_stride + e * p.logits.column_stride));
  }
  score(p, t);
  for (std::int64_t e = 0; e < experts; ++e) {
    t.choice[e] = p.chosen_by == ChosenBy::logits ? t.logits[e] : static_cast<float>(t.scores[e]);
    if (p.bias.data != nullptr)
      t.choice[e] += static_cast<float>(load_element(p.bias.dtype, p.bias.data, e * p.bias.stride));
  }
  if (p.n_group > 1) limit_to_groups(p, t);
  for (std::int64_t e = 0; e < experts; ++e) t.candidates[e] = candidate(key_of(t.choice[e]), e);
  choose(t.candidates, experts, p.topk_ids.columns);
}

/// Writes the chosen experts and what they weigh.
void write(const RouteParams& p, std::int64_t token, const Token& t) {
  const std::int64_t top_k = p.topk_ids.columns;
  double sum = 0;
  auto* weights = reinterpret_cast<double*>(t.logits);  // and the choice behind them, which nobody needs any more
  if (p.weigh == Weigh::score) {
    for (std::int64_t j = 0; j < top_k; ++j) weights[j] = t.scores[index_of(t.candidates[j])];
  } else {
    for (std::int64_t j = 0; j < top_k; ++j) t.scores[j] = t.logits[index_of(t.candidates[j])];
    if (p.weigh == Weigh::softmax_of_chosen) softmax(t.scores, top_k);
    for (std::int64_t j = 0; j < top_k; ++j)
      weights[j] = p.weigh == Weigh::sigmoid_of_chosen ? sigmoid(t.scores[j]) : t.scores[j];
  }
  for (std::int64_t j = 0; j < top_k; ++j) sum += weights[j];
  double divisor = 1;
  if (p.normalise == Normalise::sum_plus_epsilon) divisor = sum + p.epsilon;
  if (p.normalise == Normalise::at_least_epsilon) divisor = sum < p.epsilon ? p.epsilon : sum;
  for (std::int64_t j = 0; j < top_k; ++j) {
    const std::int64_t id = index_of(t.candidates[j]);
    const double scale =
        p.scale_of_expert.data == nullptr
            ? 1
            : load_element(p.scale_of_expert.dtype, p.scale_of_expert.data, id * p.scale_of_expert.stride);
    operations::store_integer(p.topk_ids.dtype, p.topk_ids.data,
                              token * p.topk_ids.row_stride + j * p.topk_ids.column_stride, id);
    operations::store_element(p.topk_weights.dtype, p.topk_weights.data,
                              token * p.topk_weights.row_stride + j * p.topk_weights.column_stride,
                              weights[j] / divisor * p.routed_scaling_factor * scale);
  }
}

}  // namespace

void run_route(const RouteParams& p) {
  constexpr std::int64_t kTokens = 16;
  constexpr double kFlopsAnExpert = 40;
  const std::int64_t tokens = p.logits.rows;
  const int workers = workers_for(kFlopsAnExpert * static_cast<double>(tokens * p.logits.columns));
  core::parallel_for(core::ceil_div(tokens, kTokens), workers, [&](std::int64_t block, int) {
    const Token memory(p, thread_scratch(Token::bytes(p)));
    for (std::int64_t t = block * kTokens; t < std::min(tokens, (block + 1) * kTokens); ++t) {
      choose(p, t, memory);
      write(p, t, memory);
    }
  });
}

}  // namespace tilewise::backends::cpu
