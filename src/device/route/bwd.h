// The logits' gradients: a wave takes a token. The choice has none, so that logits of the chosen experts have one
// through their weights, the others through a softmax over all.
#pragma once

#include "device/route/rows.h"
#include "device/tile/contract.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class RouteBwd {
  using Machine = typename Ops::Machine;
  static constexpr int kLanes = Machine::kLanes;
  static constexpr bool kOfAll = C.weigh == kWeighScore && C.score == kScoreSoftmax;

 public:
  using Params = RouteBwdParams;
  struct Shared {
    int32_t id[C.waves][C.chosen];  // -1: no expert's
    float d[C.waves][C.chosen];     // gradients of the chosen logits, a softmax over all aside
  };

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const int wave = Machine::wave();
    const TokenPlace place = token_place<Machine, C>(p.shape, wave);
    int32_t* const ids = shared.id[wave];
    float* const d = shared.d[wave];
    const auto top_k = static_cast<int32_t>(p.shape.top_k);
    bool some = false;
    for (int32_t j = Machine::lane(); j < top_k; j += kLanes) {
      const int64_t id = load_id<Machine>(p.topk_ids, place.token, j);
      const bool there = id >= 0 && id < p.shape.num_experts;
      Machine::store_shared(ids + j, there ? static_cast<int32_t>(id) : -1);
      some = some || there;
    }
    some = Machine::any(some);
    SoftmaxOver all;
    if constexpr (kOfAll) all = softmax_over_all(p, place.token);
    const float dot = through_weights(p, place.token, all, ids, d);
    Machine::wave_sync();
    write(p, place, all, ids, d, dot, some);
  }

 private:
  TILEWISE_INLINE static float logit(const Params& p, int64_t token, int64_t id) {
    return load_number<Machine>(p.logits, C.logits_type, token, id);
  }

  TILEWISE_INLINE static SoftmaxOver softmax_over_all(const Params& p, int64_t token) {
    SoftmaxOver all;
    for (int64_t e = Machine::lane(); e < p.shape.num_experts; e += kLanes)
      all.greatest = higher(all.greatest, logit(p, token, e));
    all.greatest = highest_over_wave<Machine>(all.greatest);
    float sum = 0.0f;
    for (int64_t e = Machine::lane(); e < p.shape.num_experts; e += kLanes)
      sum += all.template exponential<Machine>(logit(p, token, e));
    all.inverse = 1.0f / sum_over_wave<Machine>(sum);
    return all;
  }

  /// Calls visit(j, id, logit) for the lane's choices that are experts.
  template <class Visit>
  TILEWISE_INLINE static void for_each_choice(const Params& p, int64_t token, const int32_t* ids, const Visit& visit) {
    for (int32_t j = Machine::lane(); j < static_cast<int32_t>(p.shape.top_k); j += kLanes) {
      const auto id = Machine::template load_shared<int32_t>(ids + j);
      if (id >= 0) visit(j, id, logit(p, token, id));
    }
  }

  /// Of the weights, before normalisation and factors; returns their sum by a softmax's own weights where it is over
  /// all.
  TILEWISE_INLINE static float through_weights(const Params& p, int64_t token, const SoftmaxOver& all,
                                               const int32_t* ids, float* d) {
    const SoftmaxOver chosen = softmax_over_chosen(p, token, ids);
    float sum = 0.0f;
    for_each_choice(p, token, ids, [&](int32_t, int32_t, float x) { sum += weight_of<Machine, C>(x, all, chosen); });
    const float divisor = divisor_of(p.factors, sum_over_wave<Machine>(sum));
    const bool constant = p.factors.normalise == kNormaliseNo ||
                          (p.factors.normalise == kNormaliseAtLeastEpsilon && divisor == p.factors.epsilon);
    float of_sum = 0.0f;
    for_each_choice(p, token, ids, [&](int32_t j, int32_t id, float x) {
      const float given = load_number<Machine>(p.dtopk_weights, p.dtopk_weights.type, token, j) *
                          factor_of<Machine>(p.factors, p.scale_of_expert, id);
      Machine::store_shared(d + j, given);
      if (!constant) of_sum += given * (weight_of<Machine, C>(x, all, chosen) / divisor);
    });
    of_sum = sum_over_wave<Machine>(of_sum);
    float dot = 0.0f;
    for_each_choice(p, token, ids, [&](int32_t j, int32_t, float x) {
      const float weight = weight_of<Machine, C>(x, all, chosen);
      const float own = (Machine::template load_shared<float>(d + j) - of_sum) / divisor;
      Machine::store_shared(d + j, C.weigh == kWeighSoftmaxOfChosen ? own : own * slope(x, weight));
      dot += weight * own;
    });
    dot = sum_over_wave<Machine>(dot);
    if constexpr (C.weigh == kWeighSoftmaxOfChosen) {
      for_each_choice(p, token, ids, [&](int32_t j, int32_t, float x) {
        const float own = Machine::template load_shared<float>(d + j);
        Machine::store_shared(d + j, chosen.template weight<Machine>(x) * (own - dot));
      });
    }
    return dot;
  }

  TILEWISE_INLINE static SoftmaxOver softmax_over_chosen(const Params& p, int64_t token, const int32_t* ids) {
    SoftmaxOver chosen;
    if constexpr (C.weigh == kWeighSoftmaxOfChosen) {
      for_each_choice(p, token, ids, [&](int32_t, int32_t, float x) { chosen.greatest = higher(chosen.greatest, x); });
      chosen.greatest = highest_over_wave<Machine>(chosen.greatest);
      float sum = 0.0f;
      for_each_choice(p, token, ids,
                      [&](int32_t, int32_t, float x) { sum += chosen.template exponential<Machine>(x); });
      chosen.inverse = 1.0f / sum_over_wave<Machine>(sum);
    }
    return chosen;
  }

  /// What the logit of a chosen expert does to its weight, softmax aside. 1 - sigmoid(x) would lose what sigmoid(-x)
  /// has.
  TILEWISE_INLINE static float slope(float x, float weight) {
    if constexpr (C.weigh == kWeighSigmoidOfChosen || C.score == kScoreSigmoid) return weight * sigmoid<Machine>(-x);
    if constexpr (C.score == kScoreSqrtSoftplus)
      return x < kExponentialBelow ? 0.5f * weight : sigmoid<Machine>(x) / (2.0f * weight);
    return 1.0f;
  }

  /// An expert may stand several times among the chosen.
  TILEWISE_INLINE static void write(const Params& p, const TokenPlace& place, const SoftmaxOver& all,
                                    const int32_t* ids, const float* d, float dot, bool some) {
    if (!place.own) return;
    const auto top_k = static_cast<int32_t>(p.shape.top_k);
    for (int64_t e = Machine::lane(); e < p.shape.num_experts; e += kLanes) {
      float sum = 0.0f;
      for (int32_t j = 0; j < top_k; ++j)
        if (Machine::template load_shared<int32_t>(ids + j) == e) sum += Machine::template load_shared<float>(d + j);
      if constexpr (kOfAll) sum = some ? all.template weight<Machine>(logit(p, place.token, e)) * (sum - dot) : 0.0f;
      store_number<Machine>(p.dlogits, C.logits_type, place.token, e, sum);
    }
  }
};

}  // namespace tilewise::device
