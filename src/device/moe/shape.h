// What all kernels of expert layers are told of a call.
#pragma once

#include <stdint.h>

namespace tilewise::device {

struct MoeShape {
  int32_t tokens, top_k, hidden, intermediate, num_experts, unused;
  int64_t first_expert;  // an id outside [first_expert, first_expert + num_experts) is nobody's here
  constexpr int32_t pairs() const { return tokens * top_k; }

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("tokens", p.tokens), visit("top_k", p.top_k), visit("hidden", p.hidden);
    visit("intermediate", p.intermediate), visit("num_experts", p.num_experts), visit("unused", p.unused);
    visit("first_expert", p.first_expert);
  }
};

/// [tokens, top_k] of integers of 4 or 8 bytes, or of a BiasType's numbers.
struct PairTensor {
  const void* data;
  int64_t token_stride, slot_stride;
  int32_t type;    // of ids: bytes of one; of weights: BiasType
  int32_t unused;  // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("token_stride", p.token_stride), visit("slot_stride", p.slot_stride);
    visit("type", p.type), visit("unused", p.unused);
  }
};

}  // namespace tilewise::device
