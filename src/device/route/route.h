// The choice of experts and what they weigh: a wave takes a token, whose experts its lanes hold in registers, and finds
// the greatest that is left top_k times over, by integers that order as the numbers do.
#pragma once

#include "device/route/rows.h"
#include "device/tile/contract.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class Route {
  using Machine = typename Ops::Machine;
  static constexpr int kLanes = Machine::kLanes;
  static constexpr int kRoom = C.groups ? C.values * kLanes : 1;  // for a token's experts, and for its groups

 public:
  using Params = RouteForwardParams;
  struct Shared {
    int32_t chosen[C.waves][C.chosen];
    float choice[C.waves][kRoom];
    float group[C.waves][kRoom];
  };

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const int wave = Machine::wave();
    const TokenPlace place = token_place<Machine, C>(p.shape, wave);
    const auto experts = static_cast<int32_t>(p.shape.num_experts);
    float x[C.values];
    TILEWISE_UNROLL
    for (int i = 0; i < C.values; ++i) {
      const int32_t e = expert(i);
      x[i] = e < experts ? load_number<Machine>(p.logits, C.logits_type, place.token, e) : 0.0f;
    }
    SoftmaxOver all;
    if constexpr (C.score == kScoreSoftmax) all = softmax_over(x, experts);
    float choice[C.values];
    TILEWISE_UNROLL
    for (int i = 0; i < C.values; ++i) {
      choice[i] = C.by_logits ? x[i] : score_of<Machine, C.score>(x[i], all);
      if (C.bias_type != kRouteNone && expert(i) < experts)
        choice[i] += load_number<Machine>(p.bias, C.bias_type, 0, expert(i));
    }
    if constexpr (C.groups) limit_to_groups(p, choice, shared.choice[wave], shared.group[wave]);
    choose(choice, experts, static_cast<int32_t>(p.shape.top_k), shared.chosen[wave]);
    Machine::wave_sync();
    write(p, place, all, shared.chosen[wave]);
  }

 private:
  /// Neighbouring lanes have neighbouring experts.
  TILEWISE_INLINE static int32_t expert(int i) { return i * kLanes + Machine::lane(); }

  TILEWISE_INLINE static SoftmaxOver softmax_over(const float (&x)[C.values], int32_t experts) {
    SoftmaxOver all;
    TILEWISE_UNROLL
    for (int i = 0; i < C.values; ++i) all.greatest = expert(i) < experts ? higher(all.greatest, x[i]) : all.greatest;
    all.greatest = highest_over_wave<Machine>(all.greatest);
    float sum = 0.0f;
    TILEWISE_UNROLL
    for (int i = 0; i < C.values; ++i) sum += expert(i) < experts ? all.template exponential<Machine>(x[i]) : 0.0f;
    all.inverse = 1.0f / sum_over_wave<Machine>(sum);
    return all;
  }

  /// Integers that order as the numbers do, the two zeros alike and a NaN above all. None is kNobody.
  static constexpr int32_t kNobody = -0x7FFFFFFF - 1;
  TILEWISE_INLINE static int32_t order_of(float value) {
    const auto bits = __builtin_bit_cast(int32_t, value);
    if (value != value) return 0x7FFFFFFF;
    return bits >= 0 ? bits : bits == kNobody ? 0 : bits ^ 0x7FFFFFFF;
  }

  /// Experts of groups that do not stay can win no more, or by the number that they count as. Each lane looks at groups
  /// of its own; a group stays where fewer than topk_group are before it.
  TILEWISE_INLINE static void limit_to_groups(const Params& p, float (&choice)[C.values], float* all, float* group) {
    const auto experts = static_cast<int32_t>(p.shape.num_experts), groups = static_cast<int32_t>(p.n_group);
    const int32_t size = experts / groups;
    TILEWISE_UNROLL
    for (int i = 0; i < C.values; ++i)
      if (expert(i) < experts) Machine::store_shared(all + expert(i), choice[i]);
    Machine::wave_sync();
    for (int32_t g = Machine::lane(); g < groups; g += kLanes)
      Machine::store_shared(group + g, value_of_group(all + g * size, size, p.sum_of_two != 0));
    Machine::wave_sync();
    for (int32_t g = Machine::lane(); g < groups; g += kLanes) {
      const bool stays = count_before(group, groups, g) < p.topk_group;
      for (int32_t i = 0; !stays && i < size; ++i) Machine::store_shared(all + g * size + i, p.outside_groups);
    }
    Machine::wave_sync();
    TILEWISE_UNROLL
    for (int i = 0; i < C.values; ++i)
      if (expert(i) < experts) choice[i] = Machine::template load_shared<float>(all + expert(i));
  }
  TILEWISE_INLINE static float value_of_group(const float* members, int32_t size, bool sum_of_two) {
    float best = Machine::template load_shared<float>(members), second = best;
    for (int32_t i = 1; i < size; ++i) {
      const float member = Machine::template load_shared<float>(members + i);
      const bool greater = order_of(member) > order_of(best);
      const float other = greater ? best : member;
      if (i == 1 || order_of(other) > order_of(second)) second = other;
      best = greater ? member : best;
    }
    return sum_of_two && size > 1 ? best + second : best;
  }
  TILEWISE_INLINE static int32_t count_before(const float* group, int32_t groups, int32_t own) {
    const int32_t order = order_of(Machine::template load_shared<float>(group + own));
    int32_t before = 0;
    for (int32_t g = 0; g < groups; ++g) {
      const int32_t other = order_of(Machine::template load_shared<float>(group + g));
      before += other > order || (other == order && g < own) ? 1 : 0;
    }
    return before;
  }

  /// Writes the chosen experts to shared memory, in descending order, of ties the lower one first.
  TILEWISE_INLINE static void choose(const float (&choice)[C.values], int32_t experts, int32_t top_k, int32_t* chosen) {
    int32_t order[C.values];
    TILEWISE_UNROLL
    for (int i = 0; i < C.values; ++i) order[i] = expert(i) < experts ? order_of(choice[i]) : kNobody;
    for (int32_t j = 0; j < top_k; ++j) {
      int32_t best = order[0], at = expert(0);
      TILEWISE_UNROLL
      for (int i = 1; i < C.values; ++i) {
        at = order[i] > best ? expert(i) : at;
        best = maximum(best, order[i]);
      }
      const int32_t highest = highest_of_wave<Machine>(best);
      // The lowest expert of those lanes that have it: the highest of what falls as experts rise.
      const int32_t winner = experts - highest_of_wave<Machine>(best == highest ? experts - at : 0);
      TILEWISE_UNROLL
      for (int i = 0; i < C.values; ++i) order[i] = expert(i) == winner ? kNobody : order[i];
      if (Machine::lane() == 0) Machine::store_shared(chosen + j, winner);
    }
  }

  TILEWISE_INLINE static void write(const Params& p, const TokenPlace& place, const SoftmaxOver& all,
                                    const int32_t* ids) {
    const auto top_k = static_cast<int32_t>(p.shape.top_k);
    const auto logit = [&](int32_t id) { return load_number<Machine>(p.logits, C.logits_type, place.token, id); };
    const auto id_of = [&](int32_t j) { return Machine::template load_shared<int32_t>(ids + j); };
    SoftmaxOver chosen;
    if constexpr (C.weigh == kWeighSoftmaxOfChosen) {
      for (int32_t j = Machine::lane(); j < top_k; j += kLanes)
        chosen.greatest = higher(chosen.greatest, logit(id_of(j)));
      chosen.greatest = highest_over_wave<Machine>(chosen.greatest);
      float sum = 0.0f;
      for (int32_t j = Machine::lane(); j < top_k; j += kLanes)
        sum += chosen.template exponential<Machine>(logit(id_of(j)));
      chosen.inverse = 1.0f / sum_over_wave<Machine>(sum);
    }
    float sum = 0.0f;
    for (int32_t j = Machine::lane(); j < top_k; j += kLanes)
      sum += weight_of<Machine, C>(logit(id_of(j)), all, chosen);
    const float divisor = divisor_of(p.factors, sum_over_wave<Machine>(sum));
    for (int32_t j = Machine::lane(); place.own && j < top_k; j += kLanes) {
      const int32_t id = id_of(j);
      const float weight = weight_of<Machine, C>(logit(id), all, chosen) / divisor;
      store_id<Machine>(p.topk_ids, place.token, j, id);
      store_number<Machine>(p.topk_weights, p.topk_weights.type, place.token, j,
                            weight * factor_of<Machine>(p.factors, p.scale_of_expert, id));
    }
  }
};

}  // namespace tilewise::device
