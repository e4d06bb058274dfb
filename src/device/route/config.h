// What each kernel of route is specialised on; see device/attention/config.h for what a config is.
#pragma once

#include <stdint.h>

namespace tilewise::device {

/// Element types of route's tensors; none of one that is not given.
enum RouteType : int32_t { kRouteNone = 0, kRouteF32 = 1, kRouteBf16 = 2, kRouteF16 = 3, kRouteI32 = 4, kRouteI64 = 5 };

/// In the order of the host's enumerations of these names.
enum RouteScoreKind : int32_t { kScoreSoftmax = 0, kScoreSigmoid = 1, kScoreSqrtSoftplus = 2, kScoreIdentity = 3 };
enum RouteWeighKind : int32_t { kWeighScore = 0, kWeighSoftmaxOfChosen = 1, kWeighSigmoidOfChosen = 2 };
enum RouteNormaliseKind : int32_t { kNormaliseNo = 0, kNormaliseSumPlusEpsilon = 1, kNormaliseAtLeastEpsilon = 2 };

/// A wave has a token.
struct RouteConfig {
  int32_t logits_type = kRouteF32, bias_type = kRouteNone;  // RouteType
  int32_t score = kScoreSoftmax, weigh = kWeighScore;
  int32_t values = 8;     // experts that a lane holds
  int32_t chosen = 8;     // room for choices of a token
  int32_t by_logits = 0;  // what experts are chosen by
  int32_t groups = 0;     // experts outside of the groups that stay are not chosen
  int32_t waves = 4;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("logits_type", c.logits_type), visit("bias_type", c.bias_type), visit("score", c.score);
    visit("weigh", c.weigh), visit("values", c.values), visit("chosen", c.chosen), visit("by_logits", c.by_logits);
    visit("groups", c.groups), visit("waves", c.waves);
  }
};

struct RouteBwdConfig {
  int32_t logits_type = kRouteF32;  // RouteType
  int32_t score = kScoreSoftmax, weigh = kWeighScore;
  int32_t chosen = 8;  // room for choices of a token
  int32_t waves = 4;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("logits_type", c.logits_type), visit("score", c.score), visit("weigh", c.weigh), visit("chosen", c.chosen);
    visit("waves", c.waves);
  }
};

}  // namespace tilewise::device
