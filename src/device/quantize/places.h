// Where a wave's numbers are, and its lanes' columns of them as elements.
#pragma once

#include "device/common/float4.h"
#include "device/common/float8.h"
#include "device/quantize/config.h"
#include "device/quantize/params.h"
#include "device/tile/columns.h"
#include "device/tile/widen.h"

namespace tilewise::device {

/// A stretch of rows and columns whose scales a wave, or all waves of a block, make.
struct QuantizePlace {
  int64_t expert, row_block, column;  // the first column of its lanes
};

/// How the places of a call are numbered: by expert, block of rows and stretch of columns.
struct QuantizePlaces {
  int64_t experts, row_blocks, runs;
  TILEWISE_INLINE int64_t count() const { return experts * row_blocks * runs; }
  /// 32 bits divide in a third of the time, and the host sees to it that they suffice.
  TILEWISE_INLINE QuantizePlace at(int64_t index, int64_t run) const {
    const auto place = static_cast<uint32_t>(index), stretches = static_cast<uint32_t>(runs);
    const uint32_t block = place / stretches, blocks = static_cast<uint32_t>(row_blocks);
    return {block / blocks, block % blocks, place % stretches * run};
  }
};

/// As an integer that orders as magnitudes do. Infinities count for nothing, and so does a NaN unless kNan: then it is
/// greater than all numbers.
template <bool kNan>
TILEWISE_INLINE int32_t magnitude_key(float value) {
  const int32_t bits = __builtin_bit_cast(int32_t, value) & 0x7FFFFFFF;
  return bits < 0x7F800000 || (kNan && bits > 0x7F800000) ? bits : 0;
}

template <bool kNan>
TILEWISE_INLINE int32_t greatest_key(const float (&value)[kLaneColumns], int32_t key) {
  TILEWISE_UNROLL
  for (int i = 0; i < kLaneColumns; ++i) key = maximum(key, magnitude_key<kNan>(value[i]));
  return key;
}

/// Of `lanes` neighbours, a power of two.
template <class Machine>
TILEWISE_INLINE int32_t greatest_of_lanes(int32_t key, int lanes) {
  TILEWISE_UNROLL
  for (int bit = 1; bit < Machine::kLanes; bit *= 2) {
    if (bit < lanes) key = maximum(key, shuffle_xor<Machine>(key, bit));
  }
  return key;
}

/// A lane's columns / divisor as elements of a row that starts at `row`. The half byte behind an odd row is 0.
template <class Machine, bool kE2m1, bool kVector>
TILEWISE_INLINE void store_elements(const float (&value)[kLaneColumns], float divisor, uint8_t* row, int64_t column,
                                    int64_t columns) {
  constexpr int kBytes = kE2m1 ? kLaneColumns / 2 : kLaneColumns;
  WordRun<kBytes / 4> bytes = {};
  TILEWISE_UNROLL
  for (int i = 0; i < kLaneColumns; i += 2) {
    const float low = value[i] / divisor, high = value[i + 1] / divisor;
    if constexpr (kE2m1) {
      bytes.word[0] |= (float_to_e2m1(low) | static_cast<uint32_t>(float_to_e2m1(high)) << 4) << (4 * i);
    } else {
      bytes.word[i / 4] |= pack_e4m3<Machine>(low, high) << (8 * (i % 4));
    }
  }
  uint8_t* to = row + (kE2m1 ? column / 2 : column);
  if constexpr (kVector) {
    if (column < columns) Machine::store_global(reinterpret_cast<WordRun<kBytes / 4>*>(to), bytes);
  } else {
    TILEWISE_UNROLL
    for (int i = 0; i < kBytes; ++i) {
      if (column + (kE2m1 ? 2 * i : i) < columns)
        Machine::store_global(to + i, static_cast<uint8_t>(bytes.word[i / 4] >> (8 * (i % 4))));
    }
  }
}

/// The other way: elements as floats, zeros past the row's end.
template <class Machine, bool kE2m1, bool kVector>
TILEWISE_INLINE void load_elements(float (&value)[kLaneColumns], const uint8_t* row, int64_t column, int64_t columns) {
  constexpr int kBytes = kE2m1 ? kLaneColumns / 2 : kLaneColumns;
  WordRun<kBytes / 4> bytes = {};
  const uint8_t* from = row + (kE2m1 ? column / 2 : column);
  if constexpr (kVector) {
    if (column < columns) bytes = Machine::load_global(reinterpret_cast<const WordRun<kBytes / 4>*>(from));
  } else {
    TILEWISE_UNROLL
    for (int i = 0; i < kBytes; ++i) {
      if (column + (kE2m1 ? 2 * i : i) < columns)
        bytes.word[i / 4] |= static_cast<uint32_t>(Machine::load_global(from + i)) << (8 * (i % 4));
    }
  }
  TILEWISE_UNROLL
  for (int i = 0; i < kLaneColumns; ++i) {
    if constexpr (kE2m1) {
      value[i] = e2m1_to_float(static_cast<uint8_t>(bytes.word[0] >> (4 * i)));
    } else {
      value[i] = e4m3_to_float(static_cast<uint8_t>(bytes.word[i / 4] >> (8 * (i % 4))));
    }
  }
}

}  // namespace tilewise::device
