// The products of a consumer warpgroup of the backward kernel, whose rows are keys.
#pragma once

#include "device/hopper/config.h"
#include "device/sm90/matrix_descriptor.h"
#include "device/sm90/swizzled_tile.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

template <class Machine, auto C>
struct BwdProducts {
  /// scores = rows cols^T, of 64 rows from first_row on. kOfKeys: rows are K's. keeps: never true, which the compiler
  /// does not know.
  template <int kElement, int kDepth, bool kOfKeys, class Scores, class Rows, class Cols>
  TILEWISE_INLINE static void issue_scores(Scores& scores, Rows& rows, int first_row, Cols& cols, bool keeps) {
    const auto A = MatrixDescriptor::of<Machine>(rows.bytes + first_row * kChunkRowBytes, 16),
               B = MatrixDescriptor::of<Machine>(&cols, 16);
    Machine::wgmma_fence();
    TILEWISE_UNROLL
    for (int k = 0; k < kDepth / 16; ++k) {
      Machine::template wgmma<kElement, kKMajor, kKMajor>(scores.tile[0], A.advanced(along<Rows>(k, kOfKeys)),
                                                          B.advanced(along<Cols>(k)), k > 0 || keeps);
    }
    Machine::wgmma_commit();
  }

  /// sums += rows cols over the queries of a tile.
  template <int kElement, class Sums, class Tile>
  TILEWISE_INLINE static void issue_sums(Sums& sums, const WgmmaRegisters* rows, Tile& cols) {
    pin_registers<Machine>(sums);
    Machine::wgmma_fence();
    constexpr int kTiles = Sums::kColTiles, kFirst = minimum(kTiles, kMostTiles);
    issue_columns<kElement, 0, kFirst>(sums, rows, cols);
    if constexpr (kTiles > kFirst) issue_columns<kElement, kFirst, kTiles - kFirst>(sums, rows, cols);
    Machine::wgmma_commit();
  }

 private:
  /// Of a product's accumulators. A wider one wants more registers than a block of four warpgroups is launched with,
  /// and ptxas refuses it whatever they have later.
  static constexpr int kMostTiles = C.shares_keys ? 16 : 32;

  template <int kElement, int kFirst, int kCount, class Sums, class Tile>
  TILEWISE_INLINE static void issue_columns(Sums& sums, const WgmmaRegisters* rows, Tile& cols) {
    auto& part = reinterpret_cast<Sm80Accumulator(&)[kCount]>(sums.tile[0][kFirst]);
    const auto B = MatrixDescriptor::of<Machine>(cols.chunk(kFirst / 8), Tile::kChunkBytes);
    TILEWISE_UNROLL
    for (int k = 0; k < C.block_m / 16; ++k) {
      Machine::template wgmma<kElement, kMnMajor>(part, rows[k], B.advanced(k * 16 * kChunkRowBytes), true, true);
    }
  }

  /// Step k of a K-major tile.
  template <class Tile>
  TILEWISE_INLINE static constexpr int32_t along(int k, bool of_keys = false) {
    return (of_keys ? C.key_chunk(k / 4) : k / 4) * Tile::kChunkBytes + k % 4 * 32;
  }
};

}  // namespace tilewise::device
