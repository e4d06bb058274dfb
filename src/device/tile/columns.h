// Rows of numbers in memory, eight columns a lane: as floats, whichever type they are of.
#pragma once

#include "device/tile/element.h"
#include "device/tile/platform.h"

namespace tilewise::device {

/// Columns of a row of `columns`, from `column` on, integers of either width; zeros past its end. kVector: rows start
/// on 16 bytes and hold a multiple of kLaneColumns.
template <class Machine, bool kVector, int kType, class Column>
TILEWISE_INLINE void load_columns(float (&to)[kLaneColumns], const void* data, int64_t offset, Column column,
                                  Column columns) {
  if constexpr (kType == kNumberF32) {
    const auto* from = static_cast<const float*>(data) + offset + column;
    if constexpr (kVector) {
      Chunk chunk[2] = {};
      if (column < columns) {
        chunk[0] = Machine::load_global(reinterpret_cast<const Chunk*>(from));
        chunk[1] = Machine::load_global(reinterpret_cast<const Chunk*>(from) + 1);
      }
      TILEWISE_UNROLL
      for (int i = 0; i < kLaneColumns; ++i) to[i] = __builtin_bit_cast(float, chunk[i / 4].word[i % 4]);
    } else {
      TILEWISE_UNROLL
      for (int i = 0; i < kLaneColumns; ++i) to[i] = column + i < columns ? Machine::load_global(from + i) : 0.0f;
    }
  } else {
    constexpr int kElement = kType == kNumberBf16 ? kBf16 : kF16;
    const auto* from = static_cast<const uint16_t*>(data) + offset + column;
    if constexpr (kVector) {
      Chunk chunk = {};
      if (column < columns) chunk = Machine::load_global(reinterpret_cast<const Chunk*>(from));
      TILEWISE_UNROLL
      for (int i = 0; i < kLaneColumns; ++i) to[i] = element_to_float<kElement>(chunk.element(i));
    } else {
      TILEWISE_UNROLL
      for (int i = 0; i < kLaneColumns; ++i) {
        to[i] = column + i < columns ? element_to_float<kElement>(Machine::load_global(from + i)) : 0.0f;
      }
    }
  }
}

/// The other way, rounded to nearest even; nothing past the row's end.
template <class Machine, bool kVector, int kType, class Column>
TILEWISE_INLINE void store_columns(const float (&from)[kLaneColumns], void* data, int64_t offset, Column column,
                                   Column columns) {
  if constexpr (kType == kNumberF32) {
    auto* to = static_cast<float*>(data) + offset + column;
    if constexpr (kVector) {
      if (column >= columns) return;
      TILEWISE_UNROLL
      for (int half = 0; half < 2; ++half) {
        Chunk chunk;
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) chunk.word[i] = __builtin_bit_cast(uint32_t, from[4 * half + i]);
        Machine::store_global(reinterpret_cast<Chunk*>(to) + half, chunk);
      }
    } else {
      TILEWISE_UNROLL
      for (int i = 0; i < kLaneColumns; ++i) {
        if (column + i < columns) Machine::store_global(to + i, from[i]);
      }
    }
  } else {
    constexpr int kElement = kType == kNumberBf16 ? kBf16 : kF16;
    auto* to = static_cast<uint16_t*>(data) + offset + column;
    Chunk chunk;
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) chunk.word[i] = Machine::template pack<kElement>(from[2 * i], from[2 * i + 1]);
    if constexpr (kVector) {
      if (column < columns) Machine::store_global(reinterpret_cast<Chunk*>(to), chunk);
    } else {
      TILEWISE_UNROLL
      for (int i = 0; i < kLaneColumns; ++i) {
        if (column + i < columns) Machine::store_global(to + i, chunk.element(i));
      }
    }
  }
}

}  // namespace tilewise::device
