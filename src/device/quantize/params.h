// The parameters of each kernel of quantising: plain data, shape beside every pointer. The host's table of their
// pointers stands in backends/portable/quantize/kernels.hpp.
#pragma once

#include <stdint.h>

namespace tilewise::device {

struct QuantizeShape {
  int64_t num_experts, rows, columns;     // each expert is a tensor of its own
  int64_t block_rows, block_columns;      // all of a dimension: its size, at least 1
  int32_t number_type, e2m1, scale_type;  // as the config has them, for the host's table
  int32_t unused;                         // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("num_experts", p.num_experts), visit("rows", p.rows), visit("columns", p.columns);
    visit("block_rows", p.block_rows), visit("block_columns", p.block_columns), visit("number_type", p.number_type);
    visit("e2m1", p.e2m1), visit("scale_type", p.scale_type), visit("unused", p.unused);
  }
};

/// [num_experts, rows, columns] with contiguous columns. Strides of elements count bytes, those of numbers numbers.
struct QuantizeRows {
  void* data;
  int64_t expert_stride, row_stride;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("expert_stride", p.expert_stride), visit("row_stride", p.row_stride);
  }
};

/// [num_experts, blocks of rows, blocks of columns].
struct QuantizeScales {
  void* data;
  int64_t expert_stride, row_stride, column_stride;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("expert_stride", p.expert_stride), visit("row_stride", p.row_stride);
    visit("column_stride", p.column_stride);
  }
};

/// What a whole tensor has in common: its scale, or nvfp4's factor. data null: nothing.
struct QuantizeWhole {
  float* data;
  int64_t expert_stride;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("expert_stride", p.expert_stride);
  }
};

/// The greatest finite magnitude of each of `parts` shares of a tensor.
struct QuantizeExtremesParams {
  QuantizeShape shape;
  QuantizeRows x;
  int64_t parts;
  float* amax;  // [num_experts, parts]

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("x", p.x), visit("parts", p.parts), visit("amax", p.amax);
  }
};

/// What follows from them.
struct QuantizeWholeParams {
  QuantizeShape shape;
  int64_t parts;
  const float* amax;  // as QuantizeExtremesParams has it
  QuantizeWhole whole;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("parts", p.parts), visit("amax", p.amax), visit("whole", p.whole);
  }
};

/// Of a call either way: x and out are the numbers.
struct QuantizeParams {
  QuantizeShape shape;
  QuantizeRows numbers, elements;
  QuantizeScales scales;  // data null where the whole tensor has one, which is written
  QuantizeWhole whole;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("numbers", p.numbers), visit("elements", p.elements), visit("scales", p.scales);
    visit("whole", p.whole);
  }
};

}  // namespace tilewise::device
