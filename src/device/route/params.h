// The parameters of each kernel of route: plain data, shape beside every pointer. The host's table of their pointers
// stands in backends/portable/route/kernels.hpp.
#pragma once

#include <stdint.h>

#include "device/route/config.h"

namespace tilewise::device {

/// [tokens, columns] of RouteType `type`, or [num_experts] with a row_stride of 0. data null: not given.
struct RouteTensor {
  void* data;
  int64_t row_stride, column_stride;
  int32_t type;
  int32_t unused;  // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("row_stride", p.row_stride), visit("column_stride", p.column_stride);
    visit("type", p.type), visit("unused", p.unused);
  }
};

struct RouteShape {
  int64_t tokens, num_experts, top_k;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("tokens", p.tokens), visit("num_experts", p.num_experts), visit("top_k", p.top_k);
  }
};

/// From a weight to what is written: see docs/semantics.md, "Routing".
struct RouteFactors {
  int32_t normalise;  // RouteNormaliseKind
  float epsilon, routed_scaling_factor;
  int32_t unused;  // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("normalise", p.normalise), visit("epsilon", p.epsilon);
    visit("routed_scaling_factor", p.routed_scaling_factor), visit("unused", p.unused);
  }
};

struct RouteForwardParams {
  RouteShape shape;
  RouteFactors factors;
  RouteTensor logits, bias, scale_of_expert, topk_ids, topk_weights;
  int64_t n_group, topk_group;  // of configs with groups
  int32_t sum_of_two;           // a group's value is the sum of its two greatest, else its greatest
  float outside_groups;         // what experts of other groups count as

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("factors", p.factors), visit("logits", p.logits), visit("bias", p.bias);
    visit("scale_of_expert", p.scale_of_expert), visit("topk_ids", p.topk_ids), visit("topk_weights", p.topk_weights);
    visit("n_group", p.n_group), visit("topk_group", p.topk_group), visit("sum_of_two", p.sum_of_two);
    visit("outside_groups", p.outside_groups);
  }
};

struct RouteBwdParams {
  RouteShape shape;
  RouteFactors factors;
  RouteTensor logits, scale_of_expert, topk_ids, dtopk_weights, dlogits;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("factors", p.factors), visit("logits", p.logits);
    visit("scale_of_expert", p.scale_of_expert), visit("topk_ids", p.topk_ids);
    visit("dtopk_weights", p.dtopk_weights), visit("dlogits", p.dlogits);
  }
};

}  // namespace tilewise::device
