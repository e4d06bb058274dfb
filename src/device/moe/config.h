// What each portable kernel of expert layers is specialised on; see device/attention/config.h for what a config is.
#pragma once

#include "device/common/activation.h"
#include "device/product/config.h"

namespace tilewise::device {

/// Pairs (token, slot) by expert: a block has a chunk of them, each of its threads experts of its own.
struct ExpertSortConfig {
  int32_t experts = 128;  // room for so many, a power of two from 4 on
  int32_t counts = 0;     // 1: the launch that counts each chunk's, 0: the one that places them
  int32_t waves = 8;

  static constexpr int32_t kChunk = 1024;  // pairs of a block

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("experts", c.experts), visit("counts", c.counts), visit("waves", c.waves);
  }
};

/// f32 factors of whole sums, and what is added to them.
struct ExpertSumsConfig : ProductConfig {
  int32_t row_scale = 0, column_scale = 0, expert_scale = 0;
  int32_t bias_type = kBiasNone;  // BiasType
  int32_t weighs = 0;             // topk_weights multiply: the first product's sums, or what the second one comes to

  template <class Config, class Visit>
  static constexpr void for_each_sums_field(Config& c, const Visit& visit) {
    for_each_product_field(c, visit);
    visit("row_scale", c.row_scale), visit("column_scale", c.column_scale), visit("expert_scale", c.expert_scale);
    visit("bias_type", c.bias_type), visit("weighs", c.weighs);
  }
  bool operator==(const ExpertSumsConfig&) const = default;
};

/// Rows of x times gate_up, activated.
struct ExpertUpConfig : ExpertSumsConfig {
  int32_t gate = static_cast<int32_t>(GateLayout::concatenated);
  int32_t activation = static_cast<int32_t>(ActivationKind::silu);
  int32_t clamp = static_cast<int32_t>(ActivationClamp::none);
  int32_t h_type = kNumberBf16;  // NumberType, of the products' gradients too
  int32_t vector_h = 1;          // rows of it are multiples of 8
  int32_t gradient = 0;          // the products' gradients are wanted

  [[nodiscard]] constexpr GateLayout layout() const { return static_cast<GateLayout>(gate); }
  /// Intermediate values of a block.
  [[nodiscard]] constexpr int32_t values() const { return layout() == GateLayout::none ? block_n : block_n / 2; }

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_sums_field(c, visit);
    visit("gate", c.gate), visit("activation", c.activation), visit("clamp", c.clamp), visit("h_type", c.h_type);
    visit("vector_h", c.vector_h), visit("gradient", c.gradient);
  }
  bool operator==(const ExpertUpConfig&) const = default;
};

/// Rows by expert times a matrix of it.
struct ExpertRowsConfig : ExpertSumsConfig {
  int32_t out_type = kNumberBf16;  // NumberType
  int32_t vector_out = 1;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_sums_field(c, visit);
    visit("out_type", c.out_type), visit("vector_out", c.vector_out);
  }
  bool operator==(const ExpertRowsConfig&) const = default;
};

/// Sums over an expert's rows of products of two operands' columns.
struct ExpertDwConfig : ProductConfig {
  int32_t out_type = kNumberBf16;  // NumberType
  int32_t vector_out = 1;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_product_field(c, visit);
    visit("out_type", c.out_type), visit("vector_out", c.vector_out);
  }
  bool operator==(const ExpertDwConfig&) const = default;
};

/// Sums over an expert's rows: a lane has a column, the waves of a block take the rows in turn.
struct ExpertDbiasConfig {
  int32_t rows_type = kNumberBf16, out_type = kNumberBf16;  // NumberType
  int32_t gathered = 0;                                     // rows are those of tokens, times their weight if `weighs`
  int32_t weighs = 0;
  int32_t waves = 8;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("rows_type", c.rows_type), visit("out_type", c.out_type), visit("gathered", c.gathered);
    visit("weighs", c.weighs), visit("waves", c.waves);
  }
};

/// A wave has a row, or a pair.
struct ExpertWaveConfig {
  int32_t waves = 4;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("waves", c.waves);
  }
};

/// A lane has 8 columns of a token.
struct ExpertCombineConfig {
  int32_t part_type = kNumberBf16, out_type = kNumberBf16;  // NumberType
  int32_t norm_type = kBiasNone;                            // BiasType; else parts are yet to be normalised
  int32_t vector_rows = 1;
  int32_t waves = 4;

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("part_type", c.part_type), visit("out_type", c.out_type), visit("norm_type", c.norm_type);
    visit("vector_rows", c.vector_rows), visit("waves", c.waves);
  }
};

}  // namespace tilewise::device
