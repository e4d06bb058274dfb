// Operands of products and groups of rows as kernels' parameters have them: plain data, shape beside every pointer.
#pragma once

#include <stdint.h>

namespace tilewise::device {

/// Scales of an operand's blocks: of the block of row r and depth k at [expert, r / scale_rows, k / scale_depth], by
/// strides in scales. data null: there are none.
struct ProductScales {
  const void* data;
  int64_t expert_stride, row_stride, depth_stride;
  int64_t rows, depths;  // blocks that there are, for the host's table
  int32_t type;          // ScaleType, likewise
  int32_t unused;        // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("expert_stride", p.expert_stride), visit("row_stride", p.row_stride);
    visit("depth_stride", p.depth_stride), visit("rows", p.rows), visit("depths", p.depths), visit("type", p.type);
    visit("unused", p.unused);
  }
};

/// Rows of an operand, of each expert. A line is a row or, transposed, a step of the depth; strides count bytes.
struct ProductOperand {
  const void* data;
  int64_t expert_stride, line_stride;
  ProductScales scales;
  int64_t experts, lines, length;  // lines of each expert, and elements of a line, for the host's table
  int32_t type;                    // ProductType, likewise
  int32_t role;                    // which tensor of the operation it is, likewise

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("expert_stride", p.expert_stride), visit("line_stride", p.line_stride);
    visit("scales", p.scales), visit("experts", p.experts), visit("lines", p.lines), visit("length", p.length);
    visit("type", p.type), visit("role", p.role);
  }
};

/// Factors or a bias [expert, index] by strides in elements. data null: not given.
struct ProductVector {
  const void* data;
  int64_t expert_stride, stride;
  int64_t experts, size;  // for the host's table, as are the next two
  int32_t type;           // NumberType
  int32_t given;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("expert_stride", p.expert_stride), visit("stride", p.stride);
    visit("experts", p.experts), visit("size", p.size), visit("type", p.type), visit("given", p.given);
  }
};

/// How rows belong to groups.
enum GroupsType : int32_t { kGroupsNone = 0, kGroupsOffsets = 1, kGroupsCounts = 2 };

/// Offsets [num_groups + 1] or counts [num_groups] of rows, in device memory: any numbers. See device/product/groups.h.
struct ProductGroups {
  const void* data;
  int64_t stride;      // in numbers
  int32_t num_groups;  // of GroupsType none: 1
  int32_t bytes;       // of a number
  int32_t type;        // GroupsType, for the host's table
  int32_t unused;      // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("stride", p.stride), visit("num_groups", p.num_groups), visit("bytes", p.bytes);
    visit("type", p.type), visit("unused", p.unused);
  }
};

/// Tiles of block_m rows that there are at most, however rows belong to groups.
constexpr int64_t most_group_tiles(int64_t rows, int64_t num_groups, int64_t block_m, bool grouped) {
  if (!grouped) return (rows + block_m - 1) / block_m;
  const int64_t tiles = rows / block_m + num_groups + 2;
  return tiles < rows ? tiles : rows;
}

}  // namespace tilewise::device
