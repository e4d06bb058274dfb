// Products of bf16 pairs on AMX tiles. Operands, packing and rounding are ComputeBf16's; only
// the matrix product differs. Rows come in sixteens, so the arrays have room for some more.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/compute_bf16.h"

namespace tilewise::backends::cpu {

struct AmxBf16 : Avx512 {};

/// The processor's format. A constant, since the compiler takes ldtilecfg to read 8 bytes only.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
inline constexpr TileConfig kTileConfig;

struct ComputeAmx : ComputeBf16 {
  using V = AmxBf16;
  static constexpr int kDepthUnits = 16;
  static constexpr int kRowPadding = 16;
  static constexpr int64_t kForwardKeys = 256;
  static constexpr int64_t kForwardRows = 32;
  static constexpr int32_t kMaxRows = 256;
  template <class In>
  static constexpr bool decodes_fp8() {
    return false;  // left to ComputeBf16, which multiplies so few rows alike
  }
  static constexpr int64_t kBackwardRows = 192;

  /// Holds the tiles configured, all eight as 16 rows of 64 bytes, and gives them back.
  class Session {
   public:
    TILEWISE_INLINE Session() { _tile_loadconfig(&kTileConfig); }
    TILEWISE_INLINE ~Session() { _tile_release(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  static void multiply(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t lda, const float* b,
                       int64_t panel_stride, float* c, int64_t ldc, bool accumulate) {
    settle_memory();
    for (int64_t column = 0; column < columns; column += kPanel<V>, b += panel_stride) {
      const int64_t width = columns - column < kPanel<V> ? columns - column : kPanel<V>;
      // 32 columns of B stay in the first-level cache while all rows pass.
      for (int64_t j = 0; j < width; j += 32) {
        for (int64_t r = 0; r < rows; r += 32) {
          const float* a_rows = a + r * lda;
          float* to = c + r * ldc + column + j;
          if (rows - r > 16 && width - j > 16)
            multiply_2x2(a_rows, lda, b + j, to, ldc, depth, accumulate);
          else
            multiply_edge(rows - r > 16 ? 2 : 1, width - j > 16 ? 2 : 1, a_rows, lda, b + j, to, ldc, depth,
                          accumulate);
        }
      }
    }
    settle_memory();
  }

 private:
  /// Tile loads and stores don't tell the compiler which memory they touch.
  TILEWISE_INLINE static void settle_memory() { __asm__ volatile("" ::: "memory"); }

  /// 32 x 32: tiles 0 to 3 accumulate, 4 and 5 hold A, 6 and 7 hold B.
  TILEWISE_INLINE static void multiply_2x2(const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                                           int64_t depth, bool accumulate) {
    const int64_t a_bytes = lda * 4, b_bytes = int64_t{kPanel<V>} * 4, c_bytes = ldc * 4;
    if (accumulate) {
      _tile_loadd(0, c, c_bytes);
      _tile_loadd(1, c + 16, c_bytes);
      _tile_loadd(2, c + 16 * ldc, c_bytes);
      _tile_loadd(3, c + 16 * ldc + 16, c_bytes);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t d = 0; d < depth; d += 16) {
      const float* b_rows = b + d * kPanel<V>;
      _tile_loadd(6, b_rows, b_bytes);
      _tile_loadd(4, a + d, a_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b_rows + 16, b_bytes);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + 16 * lda + d, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + 16, c_bytes);
    _tile_stored(2, c + 16 * ldc, c_bytes);
    _tile_stored(3, c + 16 * ldc + 16, c_bytes);
  }

  /// One or two by one or two tiles, one at a time.
  static void multiply_edge(int tile_rows, int tile_columns, const float* a, int64_t lda, const float* b, float* c,
                            int64_t ldc, int64_t depth, bool accumulate) {
    for (int i = 0; i < tile_rows; ++i) {
      for (int j = 0; j < tile_columns; ++j) {
        float* to = c + 16 * i * ldc + 16 * j;
        if (accumulate)
          _tile_loadd(0, to, ldc * 4);
        else
          _tile_zero(0);
        for (int64_t d = 0; d < depth; d += 16) {
          _tile_loadd(6, b + d * kPanel<V> + 16 * j, int64_t{kPanel<V>} * 4);
          _tile_loadd(4, a + 16 * i * lda + d, lda * 4);
          _tile_dpbf16ps(0, 4, 6);
        }
        _tile_stored(0, to, ldc * 4);
      }
    }
  }
};

}  // namespace tilewise::backends::cpu
