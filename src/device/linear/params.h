// The parameters of each kernel of linear layers: plain data, shape beside every pointer. The host's table of their
// pointers stands in backends/portable/linear/kernels.hpp.
#pragma once

#include <stdint.h>

#include "device/product/params.h"
#include "device/tile/activate.h"

namespace tilewise::device {

/// What an operand or a result is, for the host's table of pointers. Of w either way round, dsum is the gradient of
/// what the activation is given.
enum LinearRole : int32_t {
  kLinearNone = 0,
  kLinearX = 1,
  kLinearW = 2,
  kLinearWBack = 3,  // rows are k
  kLinearDout = 4,
  kLinearDsum = 5,
  kLinearOut = 6,
  kLinearDx = 7,
  kLinearDw = 8
};

/// [experts, rows, columns] with contiguous columns, by strides in elements.
struct LinearMatrix {
  void* data;
  int64_t expert_stride, row_stride;
  int32_t type;  // NumberType, for the host's table
  int32_t role;  // likewise

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("expert_stride", p.expert_stride), visit("row_stride", p.row_stride);
    visit("type", p.type), visit("role", p.role);
  }
};

/// Tiles of a launch: m_tiles of rows, n_tiles of columns, and `splits` parts of the depth of depth_part each.
struct LinearGrid {
  int32_t m_tiles, n_tiles, splits;
  int32_t unused;  // keeps the block free of holes
  int64_t depth_part;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("m_tiles", p.m_tiles), visit("n_tiles", p.n_tiles), visit("splits", p.splits), visit("unused", p.unused);
    visit("depth_part", p.depth_part);
  }
};

/// What becomes of sums [rows, columns].
struct LinearEpilogueParams {
  int64_t rows, columns;
  ProductGroups groups;
  ProductVector row_scale, column_scale, expert_scale;  // by row, column, and expert alone
  ProductVector bias;
  LinearMatrix dout, out;
  ActivationNumbers numbers;
  LinearGrid grid;
  float* partial;  // [splits, rows, columns] of the workspace

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("rows", p.rows), visit("columns", p.columns), visit("groups", p.groups), visit("row_scale", p.row_scale);
    visit("column_scale", p.column_scale), visit("expert_scale", p.expert_scale), visit("bias", p.bias);
    visit("dout", p.dout), visit("out", p.out), visit("numbers", p.numbers), visit("grid", p.grid);
    visit("partial", p.partial);
  }
};

struct LinearProductParams {
  int64_t depth;
  ProductOperand a, b;
  LinearEpilogueParams epilogue;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("depth", p.depth), visit("a", p.a), visit("b", p.b), visit("epilogue", p.epilogue);
  }
};

/// out[expert, r, c] = the sum over the expert's rows t of a[t, r] b[t, c].
struct LinearDwParams {
  int64_t tokens, rows, columns;
  ProductGroups groups;
  ProductOperand a, b;
  LinearMatrix out;
  int32_t m_tiles, n_tiles;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("tokens", p.tokens), visit("rows", p.rows), visit("columns", p.columns), visit("groups", p.groups);
    visit("a", p.a), visit("b", p.b), visit("out", p.out), visit("m_tiles", p.m_tiles), visit("n_tiles", p.n_tiles);
  }
};

/// out[expert, c] = the sum over the expert's rows t of dout[t, c].
struct LinearDbiasParams {
  int64_t tokens, columns;
  ProductGroups groups;
  LinearMatrix dout;
  void* out;
  int64_t expert_stride, stride;
  int32_t n_tiles;
  int32_t out_type;  // NumberType, for the host's table

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("tokens", p.tokens), visit("columns", p.columns), visit("groups", p.groups), visit("dout", p.dout);
    visit("out", p.out), visit("expert_stride", p.expert_stride), visit("stride", p.stride);
    visit("n_tiles", p.n_tiles), visit("out_type", p.out_type);
  }
};

}  // namespace tilewise::device
