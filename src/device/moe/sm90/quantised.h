// Quantised weights in the kernel for few rows. They come as they lie, 128 bytes of a row to a stage, and lanes widen
// them on their way to the matrix unit, into registers. Each lane of four takes 16 adjacent bytes at once, so it is the
// rows of x whose elements are put in order for it. Scales of few elements multiply these, and those of many the sums.
#pragma once

#include "device/moe/sm90/scales.h"
#include "device/sm90/mma.h"
#include "device/sm90/pipeline.h"
#include "device/sm90/promotion.h"
#include "device/sm90/widen_e2m1.h"
#include "device/tile/widen.h"

namespace tilewise::device {

inline constexpr int kBatch = 4;  // steps of K whose weights are widened at once

/// visit(step, place, slot, the word) for a batch's words: eight places of K at a time, of a lane's two rows.
template <class Visit>
TILEWISE_INLINE void for_each_word(WgmmaRegisters (&of)[kBatch], const Visit& visit) {
  TILEWISE_UNROLL
  for (int i = 0; i < 4 * kBatch; ++i) visit(i / 4, i / 2 % 2, i % 2, of[i / 4].word[i % 4]);
}

/// How a lane's 16 bytes of one half of a stage become operands. In batches: step `s` of one is step(batch, half, s) of
/// the stage, and its pair for the first or the last eight places comes of word(s, 0 or 1).
template <class Machine, MoeDecodeConfig C>
struct WeightCodes {
  using Narrow = WidenE2m1<Machine, C.type>;
  using Factor = typename Narrow::Factor;
  static constexpr int kBatches = 2, kScales = C.weights == kMoeNvfp4 ? 2 : 1;  // of a half; of a lane's 16 bytes
  static constexpr bool kPromotes = false;

  TILEWISE_INLINE static constexpr int word(int s, int place) { return s % 2 * 2 + place; }
  TILEWISE_INLINE static constexpr int step(int batch, int half, int s) {
    return 8 * batch + s / 2 * 4 + 2 * half + s % 2;
  }
  TILEWISE_INLINE static Factor factor(uint8_t scale) {
    return C.weights == kMoeNvfp4 ? Narrow::factor_of_e4m3(scale) : Narrow::factor_of_e8m0(scale);
  }
  TILEWISE_INLINE static uint32_t widen(uint32_t word, int batch, int s, const Factor& factor) {
    return Narrow::multiply(Narrow::pair(word, 2 * batch + s / 2), factor);
  }
  /// Whether widen() gets some wrong: a scale is too large for one factor.
  TILEWISE_INLINE static bool is_rare(const Chunk&, const Factor (&factor)[kScales]) { return factor[0].rest != 0; }
  TILEWISE_INLINE static void correct(WgmmaRegisters (&to)[kBatch], const Chunk (&)[2],
                                      const Factor (&factor)[2][kScales]) {
    Factor left[2] = {factor[0][0], factor[1][0]};
    while ((left[0].rest | left[1].rest) != 0) {
      left[0] = Narrow::next(left[0]), left[1] = Narrow::next(left[1]);
      for_each_word(to, [&](int, int, int slot, uint32_t& pair)
                            TILEWISE_INLINE_LAMBDA { pair = Narrow::multiply(pair, left[slot]); });
    }
  }
  /// Elements of x that go to pair t of place `to` from the same piece of chunk t.
  TILEWISE_INLINE static uint32_t order(const Chunk& from, int to) {
    return Machine::permute_bytes(from.word[to / 2], from.word[2 + to / 2], to % 2 == 0 ? 0x5410u : 0x7632u);
  }
};

/// fp8 e4m3, whose scales are of 128 x 128 elements: a stage is one of them deep.
template <class Machine, MoeDecodeConfig C>
  requires(C.weights == kMoeFp8Blocks)
struct WeightCodes<Machine, C> {
  using Narrow = WidenE4m3<Machine, C.type>;
  struct Factor {};
  static constexpr int kBatches = 1, kScales = 1;
  static constexpr bool kPromotes = true;

  TILEWISE_INLINE static constexpr int word(int s, int place) { return s / 2 + 2 * place; }
  TILEWISE_INLINE static constexpr int step(int, int half, int s) { return 2 * s + half; }
  TILEWISE_INLINE static uint32_t widen(uint32_t word, int, int s, const Factor&) {
    return Narrow::widen_pair(bytes_of_pair(word, s));
  }
  TILEWISE_INLINE static bool is_rare(const Chunk& bits, const Factor (&)[kScales]) {
    return (Narrow::nans(bits.word[0]) | Narrow::nans(bits.word[1]) | Narrow::nans(bits.word[2]) |
            Narrow::nans(bits.word[3])) != 0;
  }
  TILEWISE_INLINE static void correct(WgmmaRegisters (&to)[kBatch], const Chunk (&bits)[2],
                                      const Factor (&)[2][kScales]) {
    for_each_word(to, [&](int s, int place, int slot, uint32_t& pair) TILEWISE_INLINE_LAMBDA {
      pair |= Narrow::nan_pair(bytes_of_pair(Narrow::nans(bits[slot].word[word(s, place)]), s));
    });
  }
  TILEWISE_INLINE static uint32_t order(const Chunk& from, int to) {
    return Machine::permute_bytes(from.word[to / 2 * 2], from.word[to / 2 * 2 + 1], to % 2 == 0 ? 0x5410u : 0x7632u);
  }

 private:
  /// Bytes 0 and 2, or 1 and 3, in upper bytes of halves.
  TILEWISE_INLINE static uint32_t bytes_of_pair(uint32_t word, int s) {
    return (s % 2 == 0 ? word << 8 : word) & 0xFF00FF00u;
  }
};

/// Products of quantised weights, by a warpgroup.
template <class Machine, MoeDecodeConfig C>
class QuantisedProduct {
  using Codes = WeightCodes<Machine, C>;
  using Factor = typename Codes::Factor;
  using Window = ScaleWindow<C>;
  using Scales = TileScales<Machine, C>;

 public:
  using Weights = SwizzledTile<C.block_m(), C.weight_columns(), 1>;
  struct Shared {
    Window window[C.scale_windows];
    Ring<Machine, C.scale_windows> ring;
  };

  TILEWISE_INLINE explicit QuantisedProduct(Shared& shared) : shared_(shared) {}

  /// sums = W X^T over a tile's steps. stage_of(number): a stage of the pipeline.
  template <class Sums, class Pipe, class StageOf>
  TILEWISE_INLINE void multiply(Sums (&sums)[C.row_blocks], ConsumerPlace<Pipe>& place, const Scales& scales,
                                int32_t first_row, int32_t steps, const StageOf& stage_of) {
    const int32_t row = first_row + warp_row<Machine>() + Machine::lane() / 4;
    const float global = C.weights == kMoeNvfp4 ? scales.global() * WidenE2m1<Machine, C.type>::kFolded : 1.0f;
    int32_t at[C.row_blocks][2];
    TILEWISE_UNROLL
    for (int i = 0; i < 2 * C.row_blocks; ++i) at[i / 2][i % 2] = scales.place(row + 64 * (i / 2) + 8 * (i % 2));
    if constexpr (Codes::kPromotes) {
      for (Sums& part : sums) part.clear();
    }
    Sums block_sums;
    WgmmaRegisters widened[2][kBatch];
    pin(sums, block_sums);
    TILEWISE_NO_UNROLL
    for (int32_t step = 0; step < steps; ++step, place.advance()) {
      place.wait();
      if (step % Window::kStages == 0) place_.wait_full(shared_.ring);
      const Window& window = shared_.window[place_.stage];
      auto& stage = stage_of(place.stage());
      const auto x = MatrixDescriptor::of<Machine>(stage.rows.bytes, 16);
      TILEWISE_UNROLL
      for (int i = 0; i < C.row_blocks; ++i) {
        Sums& to = Codes::kPromotes ? block_sums : sums[i];
        TILEWISE_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int piece = 2 * (Machine::lane() % 4) + half;
          Chunk bits[2];
          Factor factor[2][Codes::kScales];
          TILEWISE_UNROLL
          for (int slot = 0; slot < 2; ++slot) {
            bits[slot] = Machine::template load_shared<Chunk>(stage.weights.piece(row + 64 * i + 8 * slot, piece));
            if constexpr (!Codes::kPromotes) {
              TILEWISE_UNROLL
              for (int k = 0; k < Codes::kScales; ++k) {
                const int32_t block = (step * 8 + piece) * Codes::kScales + k;
                factor[slot][k] = Codes::factor(scales.template scale<uint8_t>(window, at[i][slot], block));
              }
            }
          }
          TILEWISE_UNROLL
          for (int batch = 0; batch < Codes::kBatches; ++batch) {
            const bool first = half == 0 && batch == 0;
            issue(to, widened[(half * Codes::kBatches + batch) % 2], bits, factor, x, batch, half,
                  !first || (!Codes::kPromotes && step > 0));
            if (first && i == 0 && step > 0) place.release_before();
          }
        }
        if constexpr (Codes::kPromotes) promote_block(sums[i], block_sums, scales, window, at[i], step);
      }
      if (step % Window::kStages == Window::kStages - 1 || step == steps - 1) {
        arrive_as_warp(shared_.ring.empty[place_.stage]);
        place_.advance();
      }
    }
    Machine::template wgmma_wait<0>();
    pin(sums, block_sums);
    place.release_before();
    if constexpr (C.weights == kMoeNvfp4) {
      for (Sums& part : sums) part.for_each(0, [&](int, int, auto&& sum) { sum *= global; });
    }
  }

 private:
  template <class Sums>
  TILEWISE_INLINE static void pin(Sums (&sums)[C.row_blocks], Sums& block_sums) {
    if constexpr (Codes::kPromotes) {
      pin_registers<Machine>(block_sums);
    } else {
      for (Sums& part : sums) pin_registers<Machine>(part);
    }
  }

  /// Widens a batch and issues its products. Those before them are done when it returns, and their registers free.
  template <class Sums>
  TILEWISE_INLINE static void issue(Sums& sums, WgmmaRegisters (&to)[kBatch], const Chunk (&bits)[2],
                                    const Factor (&factor)[2][Codes::kScales], MatrixDescriptor x, int batch, int half,
                                    bool accumulate) {
    for_each_word(to, [&](int s, int place, int slot, uint32_t& pair) TILEWISE_INLINE_LAMBDA {
      const int word = Codes::word(s, place);
      pair = Codes::widen(bits[slot].word[word], batch, s, factor[slot][word * Codes::kScales / 4]);
    });
    if (Codes::is_rare(bits[0], factor[0]) || Codes::is_rare(bits[1], factor[1])) Codes::correct(to, bits, factor);
    if constexpr (C.weights == kMoeNvfp4) {
      // ptxas has products wait for one another where their operands are made without a branch behind.
      Machine::order_after(__builtin_bit_cast(float, to[kBatch - 1].word[3] & 0x7FFFFFFFu));
    }
    using Rows = SwizzledTile<C.block_n, C.depth>;
    Machine::wgmma_fence();
    TILEWISE_UNROLL
    for (int s = 0; s < kBatch; ++s) {
      Machine::template wgmma<C.type, kKMajor>(
          sums.tile[0], to[s], x.advanced(k_major_step<Rows>(Codes::step(batch, half, s))), s > 0 || accumulate, true);
    }
    Machine::wgmma_commit();
    Machine::template wgmma_wait<1>();
  }
  /// Adds the sums of one block along k, times its scale in fp32.
  template <class Sums>
  TILEWISE_INLINE static void promote_block(Sums& sums, Sums& block_sums, const Scales& scales, const Window& window,
                                            const int32_t (&at)[2], int32_t step) {
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(block_sums);
    typename Sums::PerRow factor;
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) factor[slot] = scales.template scale<float>(window, at[slot], step);
    promote(sums, block_sums, factor);
  }

  Shared& shared_;
  RingPlace<C.scale_windows> place_;
};

}  // namespace tilewise::device
