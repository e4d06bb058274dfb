// Operands of wgmma: a warpgroup's product of 64 rows with N columns, 16 elements deep.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

/// Where an operand tile lies in shared memory and how: rows of 64 elements (128 bytes), swizzled as TMA's
/// 128-byte mode leaves them, 8 rows to a pattern of 1024 bytes.
struct MatrixDescriptor {
  uint64_t bits;

  /// `chunk_bytes` lie between a tile's chunks of 64 columns. They are read only of an MN-major tile.
  template <class Machine>
  TILEWISE_INLINE static MatrixDescriptor of(const void* tile, int32_t chunk_bytes) {
    constexpr uint64_t kPatternBytes = 1024, kSwizzle128 = uint64_t{1} << 62;
    return {uint64_t{(Machine::shared_address(tile) & 0x3FFFFu) >> 4} | static_cast<uint64_t>(chunk_bytes >> 4) << 16 |
            (kPatternBytes >> 4) << 32 | kSwizzle128};
  }
  TILEWISE_INLINE MatrixDescriptor advanced(int32_t bytes) const {
    return {bits + (static_cast<uint32_t>(bytes) >> 4)};
  }
};

/// An operand in registers: 64 x 16 elements of a warpgroup, in the order of two accumulators of 8 columns.
struct WgmmaRegisters {
  uint32_t word[4];
};

/// How an operand lies in shared memory: its rows run along K, or along M or N.
enum Major : int32_t { kKMajor = 0, kMnMajor = 1 };

}  // namespace tilewise::device
