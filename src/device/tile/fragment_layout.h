// Which (row, column) of a product each lane's registers hold: one constexpr table a matrix
// instruction, used by the operations, by the emulation, and by tests against the vendors' manuals.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

struct Place {
  int row, col;
};

/// Accumulator of mma.sync.m16n8k16: rows lane/4 and lane/4 + 8, two adjacent columns each.
struct Sm80FragmentLayout {
  static constexpr int kLanes = 32, kRows = 16, kCols = 8, kRegisters = 4;
  TILEWISE_INLINE static constexpr Place place(int lane, int i) {
    return {lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2};
  }
  /// Lanes that share a row differ in these bits.
  static constexpr int kRowMask = 3;
  /// Rows of which a lane holds parts, and which of them register i belongs to.
  static constexpr int kRowSlots = 2;
  TILEWISE_INLINE static constexpr int slot(int i) { return i / 2; }
};

/// Accumulator of v_mfma_f32_32x32x{8,16}, seen transposed: the instruction's column is our row, so a
/// lane holds one row and 4 adjacent columns of each 8.
struct CdnaFragmentLayout {
  static constexpr int kLanes = 64, kRows = 32, kCols = 32, kRegisters = 16;
  TILEWISE_INLINE static constexpr Place place(int lane, int i) {
    return {lane % 32, 8 * (i / 4) + 4 * (lane / 32) + i % 4};
  }
  static constexpr int kRowMask = 32;
  static constexpr int kRowSlots = 1;
  TILEWISE_INLINE static constexpr int slot(int) { return 0; }
};

/// Accumulator of gfx12's v_wmma_f32_16x16x16 and gfx1250's v_wmma_f32_16x16x32, seen transposed: one row, 8 adjacent
/// columns.
struct Rdna4FragmentLayout {
  static constexpr int kLanes = 32, kRows = 16, kCols = 16, kRegisters = 8;
  TILEWISE_INLINE static constexpr Place place(int lane, int i) { return {lane % 16, 8 * (lane / 16) + i}; }
  static constexpr int kRowMask = 16;
  static constexpr int kRowSlots = 1;
  TILEWISE_INLINE static constexpr int slot(int) { return 0; }
};

/// Accumulator of gfx11's v_wmma_f32_16x16x16 in 32 lanes, seen transposed: one row, every second column.
struct RdnaFragmentLayout {
  static constexpr int kLanes = 32, kRows = 16, kCols = 16, kRegisters = 8;
  TILEWISE_INLINE static constexpr Place place(int lane, int i) { return {lane % 16, 2 * i + lane / 16}; }
  static constexpr int kRowMask = 16;
  static constexpr int kRowSlots = 1;
  TILEWISE_INLINE static constexpr int slot(int) { return 0; }
};

}  // namespace tilewise::device
