// What each kernel of quantising is specialised on; see device/attention/config.h for what a config is.
#pragma once

#include <stdint.h>

#include "device/common/block_scale.h"
#include "device/common/tensors.h"

namespace tilewise::device {

/// Which numbers share a scale.
enum ScaleScope : int32_t { kScopeBlock = 0, kScopeRow = 1, kScopeTensor = 2 };

/// A wave takes its lanes' columns of a row at a time.
struct QuantizeConfig {
  int32_t number_type = kNumberBf16;  // NumberType
  int32_t e2m1 = 0;                   // elements, else e4m3
  int32_t scale_type = kScaleF32;     // ScaleType
  int32_t power_of_two = 0;
  int32_t scope = kScopeBlock;
  int32_t lanes_a_block = 4;  // that have columns of one block, of kScopeBlock
  int32_t tall = 0;           // a block has more than one row
  int32_t global = 0;         // one more scale of the whole tensor
  int32_t vector_rows = 1;    // rows start on 16 bytes and hold a multiple of kLaneColumns columns
  int32_t waves = 4;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("number_type", c.number_type), visit("e2m1", c.e2m1), visit("scale_type", c.scale_type);
    visit("power_of_two", c.power_of_two), visit("scope", c.scope), visit("lanes_a_block", c.lanes_a_block);
    visit("tall", c.tall), visit("global", c.global), visit("vector_rows", c.vector_rows), visit("waves", c.waves);
  }

  /// Whether all waves of a block of threads work on what shares a scale.
  [[nodiscard]] constexpr bool together() const { return tall != 0 || scope == kScopeRow; }
};

}  // namespace tilewise::device
