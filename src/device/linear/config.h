// What each kernel of linear layers is specialised on; see device/attention/config.h for what a config is.
#pragma once

#include "device/common/activation.h"
#include "device/product/config.h"
#include "device/product/params.h"

namespace tilewise::device {

/// Rows of one operand times weights of their group: out, its gradient by what the activation is given, or the gradient
/// of x.
struct LinearConfig : ProductConfig {
  int32_t groups = kGroupsNone;                               // GroupsType
  int32_t row_scale = 0, column_scale = 0, expert_scale = 0;  // f32 factors of whole sums
  int32_t bias_type = kBiasNone;                              // BiasType
  int32_t activation = 0;                                     // ActivationKind
  int32_t gradient = 0;  // out = dout * the activation's derivative, else the activation
  int32_t dout_type = kNumberBf16, out_type = kNumberBf16;  // NumberType
  int32_t vector_out = 1;  // rows of out (and dout) start on 16 bytes, and have a multiple of 8 columns
  int32_t split = 0;       // sums of parts of the depth go to the workspace

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_product_field(c, visit);
    visit("groups", c.groups), visit("row_scale", c.row_scale), visit("column_scale", c.column_scale);
    visit("expert_scale", c.expert_scale), visit("bias_type", c.bias_type), visit("activation", c.activation);
    visit("gradient", c.gradient), visit("dout_type", c.dout_type), visit("out_type", c.out_type);
    visit("vector_out", c.vector_out), visit("split", c.split);
  }
  bool operator==(const LinearConfig&) const = default;
};

/// Sums over a group's rows of products of two operands' columns.
struct LinearDwConfig : ProductConfig {
  int32_t groups = kGroupsNone;    // GroupsType
  int32_t out_type = kNumberBf16;  // NumberType
  int32_t vector_out = 1;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_product_field(c, visit);
    visit("groups", c.groups), visit("out_type", c.out_type), visit("vector_out", c.vector_out);
  }
  bool operator==(const LinearDwConfig&) const = default;
};

/// Sums of a group's rows: a lane has a column, the waves of a block take the rows in turn.
struct LinearDbiasConfig {
  int32_t groups = kGroupsNone;                             // GroupsType
  int32_t dout_type = kNumberBf16, out_type = kNumberBf16;  // NumberType
  int32_t waves = 8;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("groups", c.groups), visit("dout_type", c.dout_type), visit("out_type", c.out_type), visit("waves", c.waves);
  }
};

}  // namespace tilewise::device
