// What products of tiles are specialised on: sums over depth of a[row, depth] b[column, depth]. A block has block_m
// rows of a, block_n of b, and streams both along their depth. See device/attention/config.h for what a config is.
#pragma once

#include <stdint.h>

#include "device/common/block_scale.h"
#include "device/common/tensors.h"

namespace tilewise::device {

/// What elements of an operand are in memory. Those that matrix instructions take have ElementType's numbers.
enum ProductType : int32_t {
  kProductBf16 = kBf16,
  kProductF16 = kF16,
  kProductE4m3 = kE4m3,
  kProductF32 = 3,
  kProductE2m1 = 4
};

constexpr int32_t bits_of_product_type(int32_t type) {
  return type == kProductF32 ? 32 : type == kProductE4m3 ? 8 : type == kProductE2m1 ? 4 : 16;
}

/// When an operand's scales are multiplied by.
enum ScaleUse : int32_t {
  kScaleNever = 0,     // there are none, or whoever gets the sums sees to them
  kScaleElements = 1,  // as elements are widened: exact where the products' type holds what comes out
  kScaleSums = 2,      // in fp32, where their block of the depth ends
  kScaleProducts = 3   // by the matrix unit: powers of two, of 32 steps of the depth or a multiple of 64
};

/// How the second operand comes to matrix instructions.
enum RightOperand : int32_t {
  kRightShared = 0,   // through shared memory, as the first one does
  kRightDirect = 1,   // each wave loads its own rows to registers: see device/product/direct_product.h
  kRightStreamed = 2  // all waves load all rows, in turns along the depth: see device/product/stream_product.h
};

/// One side of a product. Scales are of blocks of scale_rows x scale_depth elements; 0: of all.
struct OperandConfig {
  int32_t type = kProductBf16;
  int32_t transposed = 0;  // rows are contiguous, else the depth is
  int32_t gathered = 0;    // lines are found by an index: rows or, transposed, steps of the depth
  int32_t halves = 0;      // of b: so many columns of a wave are rows of two stretches, a half each
  int32_t vectors = 1;     // lines start on 16 bytes and have whole runs: see run()
  int32_t scale_use = kScaleNever, scale_type = kScaleF32;
  int32_t scale_rows = 1, scale_depth = 128;

  /// Elements of a line that a lane loads at once: 16 bytes and one scale, or part of a square to transpose.
  [[nodiscard]] constexpr int32_t run() const {
    if (transposed) return 8;
    if (type == kProductE2m1) return scale_use == kScaleElements && scale_depth == 16 ? 16 : 32;
    return type == kProductE4m3 ? 16 : 8;
  }
  bool operator==(const OperandConfig&) const = default;
};

struct ProductConfig {
  OperandConfig a, b;
  int32_t element = kBf16;  // what is multiplied: ElementType of matrix instructions, or kProductF32; e4m3 as it is
  int32_t block_m = 128, block_n = 128, block_k = 64;
  int32_t waves = 4, waves_n = 2;  // that share the columns of a block
  int32_t stages = 2;
  int32_t right = kRightShared;  // RightOperand

  [[nodiscard]] constexpr int32_t wave_rows() const { return block_m / (waves / waves_n); }
  [[nodiscard]] constexpr int32_t wave_columns() const { return block_n / waves_n; }
  [[nodiscard]] constexpr bool in_f32() const { return element == kProductF32; }
  [[nodiscard]] constexpr bool in_bytes() const { return element == kProductE4m3; }
  /// Whether the matrix unit takes scales, and e2m1 of b, beside bytes.
  [[nodiscard]] constexpr bool scales_products() const {
    return a.scale_use == kScaleProducts || b.scale_use == kScaleProducts;
  }
  /// Bits of a staged element of b; those of a have element_bytes().
  [[nodiscard]] constexpr int32_t right_bits() const {
    return scales_products() ? bits_of_product_type(b.type) : bits_of_product_type(element);
  }
  [[nodiscard]] constexpr int32_t element_bytes() const { return bits_of_product_type(element) / 8; }
  /// Depth after which sums are multiplied by scales; 0: they are not.
  [[nodiscard]] constexpr int32_t scaled_depth() const {
    return a.scale_use == kScaleSums ? a.scale_depth : b.scale_use == kScaleSums ? b.scale_depth : 0;
  }
  /// Bytes of a block's shared memory.
  [[nodiscard]] constexpr uint32_t shared_bytes() const {
    if (right == kRightStreamed) {
      const int32_t rows = stages * block_k * 2, sums = (block_n + kFloatPadding) * 4;
      return static_cast<uint32_t>(waves * block_m * (rows > sums ? rows : sums));
    }
    const int32_t padding = in_f32() ? kFloatPadding : 0;
    int32_t bits = (block_m + padding) * element_bytes() * 8;
    if (right != kRightDirect) bits += (block_n + padding) * right_bits();
    return static_cast<uint32_t>(stages * (bits * block_k / 8));
  }
  /// Floats between the lines of a tile in fp32, or of sums in shared memory, beside its rows.
  static constexpr int32_t kFloatPadding = 4;

  template <class Config, class Visit>
  static constexpr void for_each_product_field(Config& c, const Visit& visit) {
    visit("a.type", c.a.type), visit("a.transposed", c.a.transposed), visit("a.gathered", c.a.gathered);
    visit("a.halves", c.a.halves);
    visit("a.vectors", c.a.vectors), visit("a.scale_use", c.a.scale_use), visit("a.scale_type", c.a.scale_type);
    visit("a.scale_rows", c.a.scale_rows), visit("a.scale_depth", c.a.scale_depth), visit("b.type", c.b.type);
    visit("b.transposed", c.b.transposed), visit("b.gathered", c.b.gathered);
    visit("b.halves", c.b.halves), visit("b.vectors", c.b.vectors);
    visit("b.scale_use", c.b.scale_use), visit("b.scale_type", c.b.scale_type), visit("b.scale_rows", c.b.scale_rows);
    visit("b.scale_depth", c.b.scale_depth), visit("element", c.element), visit("block_m", c.block_m);
    visit("block_n", c.block_n), visit("block_k", c.block_k), visit("waves", c.waves), visit("waves_n", c.waves_n);
    visit("stages", c.stages), visit("right", c.right);
  }
  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_product_field(c, visit);
  }
  bool operator==(const ProductConfig&) const = default;
};

}  // namespace tilewise::device
