// Which element of an operand each lane's registers hold, one constexpr table a matrix instruction; the
// accumulators' tables stand in device/tile/fragment_layout.h. Tested against the vendors' published layouts.
#pragma once

#include "device/tile/fragment_layout.h"

namespace tilewise::backends::emulation {

/// `index` is a row of A (M x K) or a column of B (K x N).
struct OperandPlace {
  int index, k;
};
struct ProductPlace {
  int m, n;
};

/// mma.sync.aligned.m16n8k16.row.col of 16-bit elements.
struct MmaM16N8K16 {
  static constexpr int kLanes = 32, kM = 16, kN = 8, kK = 16, kWordsA = 4, kWordsB = 2;
  static constexpr int kAccumulators = device::Sm80FragmentLayout::kRegisters;
  static constexpr OperandPlace a(int lane, int word, int half) {
    return {lane / 4 + 8 * (word % 2), 2 * (lane % 4) + half + 8 * (word / 2)};
  }
  static constexpr OperandPlace b(int lane, int word, int half) { return {lane / 4, 2 * (lane % 4) + half + 8 * word}; }
  static constexpr ProductPlace d(int lane, int i) {
    const device::Place place = device::Sm80FragmentLayout::place(lane, i);
    return {place.row, place.col};
  }
};

/// wgmma's left operand of 8-bit elements in registers, which is mma.sync.aligned.m16n8k32's: four to a word.
struct MmaM16N8K32 {
  static constexpr OperandPlace a(int lane, int word, int byte) {
    return {lane / 4 + 8 * (word % 2), 4 * (lane % 4) + byte + 16 * (word / 2)};
  }
};

/// Two v_mfma_f32_32x32x8 of 16-bit elements after another, words 0-1 and 2-3. gfx950's 32x32x16 numbers
/// k otherwise (8 * (lane / 32) + 2 * word + half), for A and B alike: the sum is the same.
struct Mfma32x32x16 {
  static constexpr int kLanes = 64, kM = 32, kN = 32, kK = 16, kWordsA = 4, kWordsB = 4;
  static constexpr int kAccumulators = device::CdnaFragmentLayout::kRegisters;
  static constexpr OperandPlace a(int lane, int word, int half) {
    return {lane % 32, 8 * (word / 2) + 4 * (lane / 32) + 2 * (word % 2) + half};
  }
  static constexpr OperandPlace b(int lane, int word, int half) { return a(lane, word, half); }
  /// Kernels see the product transposed: its columns are their rows.
  static constexpr ProductPlace d(int lane, int i) {
    const device::Place place = device::CdnaFragmentLayout::place(lane, i);
    return {place.col, place.row};
  }
};

/// gfx942's v_mfma_f32_32x32x16_fp8_fp8: four bytes to a word.
struct Mfma32x32x16Fp8 {
  static constexpr int kLanes = 64, kM = 32, kN = 32, kK = 16, kWordsA = 2, kWordsB = 2;
  static constexpr int kAccumulators = device::CdnaFragmentLayout::kRegisters;
  static constexpr OperandPlace a(int lane, int word, int byte) {
    return {lane % 32, 8 * (lane / 32) + 4 * word + byte};
  }
  static constexpr OperandPlace b(int lane, int word, int byte) { return a(lane, word, byte); }
  static constexpr ProductPlace d(int lane, int i) { return Mfma32x32x16::d(lane, i); }
};

/// gfx950's v_mfma_scale_f32_32x32x64_f8f6f4: bytes are two stretches of 16 a lane, e2m1 one of 32, eight to a word.
/// The scale of row lane % 32, for stretch lane / 32 of 32, is the lowest byte of one more word.
template <bool kFours>
struct MfmaScaled32x32x64 {
  static constexpr int kLanes = 64, kM = 32, kN = 32, kK = 64, kWordsA = kFours ? 4 : 8, kWordsB = 8, kScaleWord = 8;
  static constexpr int kAccumulators = device::CdnaFragmentLayout::kRegisters;
  static constexpr OperandPlace a(int lane, int word, int part) {
    if constexpr (kFours) return {lane % 32, 32 * (lane / 32) + 8 * word + part};
    return b(lane, word, part);
  }
  static constexpr OperandPlace b(int lane, int word, int byte) {
    return {lane % 32, 32 * (word / 4) + 16 * (lane / 32) + 4 * (word % 4) + byte};
  }
  static constexpr OperandPlace scale(int lane) { return {lane % 32, lane / 32}; }
  static constexpr ProductPlace d(int lane, int i) { return Mfma32x32x16::d(lane, i); }
};

/// gfx11's v_wmma_f32_16x16x16 of 16-bit elements in 32 lanes: lanes 16 to 31 repeat the operands of 0 to 15.
struct Wmma16x16x16 {
  static constexpr int kLanes = 32, kM = 16, kN = 16, kK = 16, kWordsA = 8, kWordsB = 8;
  static constexpr int kAccumulators = device::RdnaFragmentLayout::kRegisters;
  static constexpr OperandPlace a(int lane, int word, int half) { return {lane % 16, 2 * word + half}; }
  static constexpr OperandPlace b(int lane, int word, int half) { return a(lane, word, half); }
  /// Seen transposed, as above.
  static constexpr ProductPlace d(int lane, int i) {
    const device::Place place = device::RdnaFragmentLayout::place(lane, i);
    return {place.col, place.row};
  }
};

/// gfx12's v_wmma_f32_16x16x16 of 16-bit elements in 32 lanes: each half of them has half of every 16 elements.
/// gfx1250's 16x16x32 has two such blocks one after the other.
template <int kBlocks>
struct WmmaOfHalves {
  static constexpr int kLanes = 32, kM = 16, kN = 16, kK = 16 * kBlocks, kWordsA = 4 * kBlocks, kWordsB = 4 * kBlocks;
  static constexpr int kAccumulators = device::Rdna4FragmentLayout::kRegisters;
  static constexpr OperandPlace a(int lane, int word, int half) {
    return {lane % 16, 16 * (word / 4) + 8 * (lane / 16) + 2 * (word % 4) + half};
  }
  static constexpr OperandPlace b(int lane, int word, int half) { return a(lane, word, half); }
  /// Seen transposed, as above.
  static constexpr ProductPlace d(int lane, int i) {
    const device::Place place = device::Rdna4FragmentLayout::place(lane, i);
    return {place.col, place.row};
  }
};
using Wmma16x16x16Halves = WmmaOfHalves<1>;
using Wmma16x16x32 = WmmaOfHalves<2>;

}  // namespace tilewise::backends::emulation
