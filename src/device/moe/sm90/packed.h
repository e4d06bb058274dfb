// Weights of four bits in the kernel for few rows. They come as they lie, 128 bytes of a row to a stage, and lanes
// widen them on their way to the matrix unit, into registers. Each lane of four takes 16 adjacent bytes at once, so it
// is the rows of x whose elements are put in order for it. Scales come beside them, 32 bytes of a row at a time.
#pragma once

#include "device/moe/sm90/config.h"
#include "device/moe/sm90/params.h"
#include "device/sm90/e2m1.h"
#include "device/sm90/mma.h"
#include "device/sm90/pipeline.h"

namespace tilewise::device {

/// Elements of a row in a stage, and of a block with a scale.
inline constexpr int32_t kPackedDepth = 256, kPackedBlock = 32, kStageScales = kPackedDepth / kPackedBlock;
/// Scales of a row that are loaded together: fewer bytes would be loaded by as many sectors of 32.
inline constexpr int32_t kWindowScales = 32, kWindowStages = kWindowScales / kStageScales;

/// Piece q of each of a row's four chunks gets, for the chunk's number j, elements j and j + 4 of piece q of chunk t
/// as its pair t: the weights that lane t widens for that place. A warp puts so many rows in order.
template <class Machine>
TILEWISE_INLINE void order_for_packed(uint8_t* tile, int32_t rows) {
  constexpr int kPieces = kChunkRowBytes / 16, kChunks = 4;
  for (int32_t i = Machine::lane(); i < rows * kPieces; i += 32) {
    uint8_t* const at = tile + SwizzledTile<8, 64>::place_of(i / kPieces, i % kPieces);
    Chunk from[kChunks];
    TILEWISE_UNROLL
    for (int t = 0; t < kChunks; ++t) from[t] = Machine::template load_shared<Chunk>(at + t * rows * kChunkRowBytes);
    TILEWISE_UNROLL
    for (int j = 0; j < kChunks; ++j) {
      Chunk to;
      TILEWISE_UNROLL
      for (int t = 0; t < kChunks; ++t) {
        to.word[t] =
            Machine::permute_bytes(from[t].word[j / 2], from[t].word[2 + j / 2], j % 2 == 0 ? 0x5410u : 0x7632u);
      }
      Machine::store_shared(reinterpret_cast<Chunk*>(at + j * rows * kChunkRowBytes), to);
    }
  }
}

/// Scales of so many rows as they lie in memory, from the 16 bytes on in which the first one lies.
template <int kRows>
struct alignas(16) ScaleWindow {
  static constexpr int32_t kRowBytes = kWindowScales + 16;
  uint8_t bytes[kRows * kRowBytes];
};

/// The scales of a tile's rows of weights.
class TileScales {
 public:
  /// `gates`: rows are gate's and up's, eight of each in turns. first, end: the tile's first one of each and how many
  /// there are.
  TILEWISE_INLINE TileScales(const ExpertScales& of, int32_t expert, bool gates, int32_t first, int32_t end)
      : of_(of),
        data_(static_cast<const uint8_t*>(of.data) + expert * of.expert_stride),
        gates_(gates),
        first_(first),
        end_(end) {}

  /// All lanes of a warp load scales from `begin` on. Those past a row's end are whatever lies there; zeros stand for
  /// those of rows that are not there.
  template <class Machine, int kRows>
  TILEWISE_INLINE void load(ScaleWindow<kRows>& to, int32_t begin, Barrier<Machine>& full) const {
    const int32_t count = minimum(of_.columns - begin, kWindowScales);
    for (int32_t r = Machine::lane(); r < kRows; r += 32) {
      uint8_t* const row = to.bytes + r * ScaleWindow<kRows>::kRowBytes;
      const uint8_t* const from = row_of(r);
      if (of_.in_runs) {
        const int32_t before = bytes_before(from);
        TILEWISE_UNROLL
        for (int32_t at = 0; at < ScaleWindow<kRows>::kRowBytes; at += 16) {
          const bool there = from != nullptr && at < before + count;
          Machine::copy_async(row + at, there ? from + begin - before + at : of_.data, there);
        }
      } else {
        for (int32_t i = 0; i < count; ++i) {
          const int64_t at = (begin + i) * of_.column_stride;
          Machine::store_shared(row + i, from != nullptr ? Machine::load_global(from + at) : uint8_t{0});
        }
      }
    }
    if (of_.in_runs) {
      full.arrive_after_copies();
    } else {
      full.arrive();
    }
  }

  /// Where the first scale of a row stands in a window.
  template <int kRows>
  TILEWISE_INLINE int32_t place(int32_t r) const {
    return r * ScaleWindow<kRows>::kRowBytes + (of_.in_runs ? bytes_before(row_of(r)) : 0);
  }
  /// The scale at a row's place; of blocks that are not there that of zeros.
  template <class Machine, int kRows>
  TILEWISE_INLINE uint8_t scale(const ScaleWindow<kRows>& window, int32_t place, int32_t block) const {
    if (block >= of_.columns) return 0;
    return Machine::template load_shared<uint8_t>(window.bytes + place + block % kWindowScales);
  }

 private:
  TILEWISE_INLINE const uint8_t* row_of(int32_t r) const {
    const int32_t i = first_ + (gates_ ? r / 16 * 8 + r % 8 : r), gate = gates_ ? r / 8 % 2 : 0;
    return i < end_ ? data_ + gate * of_.gate_stride + i * of_.row_stride : nullptr;
  }
  /// A run begins with the 16 bytes that its first one lies in. Windows are 32 scales apart.
  TILEWISE_INLINE static int32_t bytes_before(const uint8_t* row) {
    return static_cast<int32_t>(reinterpret_cast<uintptr_t>(row) % 16);
  }

  const ExpertScales& of_;
  const uint8_t* const data_;
  const bool gates_;
  const int32_t first_, end_;
};

/// Products of packed weights, by a warpgroup.
template <class Machine, MoeDecodeConfig C>
class PackedProduct {
  using Widen = E2m1<Machine, C.type>;
  using Factor = typename Widen::Factor;
  static constexpr int kRows = C.block_m(), kBatch = 4;  // steps of K whose weights are widened at once

 public:
  using Weights = SwizzledTile<kRows, kPackedDepth / 2, 1>;
  struct Scales {
    ScaleWindow<kRows> window[C.scale_windows];
    Ring<Machine, C.scale_windows> ring;
  };

  TILEWISE_INLINE explicit PackedProduct(Scales& scales) : shared_(scales) {}

  /// sums = W X^T over a tile's steps. stage_of(number): a stage of the pipeline.
  template <int kColumns, class Sums, class Pipe, class StageOf>
  TILEWISE_INLINE void multiply(Sums (&sums)[C.row_blocks], ConsumerPlace<Pipe>& place, const TileScales& scales,
                                int32_t first_row, int32_t steps, const StageOf& stage_of) {
    const int32_t row = first_row + warp_row<Machine>() + Machine::lane() / 4;
    int32_t at[C.row_blocks][2];
    TILEWISE_UNROLL
    for (int i = 0; i < 2 * C.row_blocks; ++i) at[i / 2][i % 2] = scales.place<kRows>(row + 64 * (i / 2) + 8 * (i % 2));
    WgmmaRegisters widened[2][kBatch];
    for (Sums& part : sums) pin_registers<Machine>(part);
    TILEWISE_NO_UNROLL
    for (int32_t step = 0; step < steps; ++step, place.advance()) {
      place.wait();
      if (step % kWindowStages == 0) place_.wait_full(shared_.ring);
      auto& stage = stage_of(place.stage());
      const auto x = MatrixDescriptor::of<Machine>(stage.rows.bytes, 16);
      TILEWISE_UNROLL
      for (int i = 0; i < 2 * C.row_blocks; ++i) {
        const int block = i / 2, half = i % 2;
        Chunk bits[2];
        Factor factor[2];
        TILEWISE_UNROLL
        for (int slot = 0; slot < 2; ++slot) {
          const int piece = 2 * (Machine::lane() % 4) + half;
          bits[slot] = Machine::template load_shared<Chunk>(stage.weights.piece(row + 64 * block + 8 * slot, piece));
          factor[slot] = Widen::factor(
              scales.scale<Machine>(shared_.window[place_.stage], at[block][slot], step * kStageScales + piece));
        }
        issue<kColumns, 0>(sums[block], widened[0], bits, factor, x, half, step > 0 || half > 0);
        if (i == 0 && step > 0) place.release_before();
        issue<kColumns, 2>(sums[block], widened[1], bits, factor, x, half, true);
      }
      if (step % kWindowStages == kWindowStages - 1 || step == steps - 1) {
        arrive_as_warp(shared_.ring.empty[place_.stage]);
        place_.advance();
      }
    }
    Machine::template wgmma_wait<0>();
    for (Sums& part : sums) pin_registers<Machine>(part);
    place.release_before();
  }

 private:
  /// Widens pairs kFirst and kFirst + 1 of each word and issues their products. Those before the last ones are done
  /// when it returns, so that their registers are free.
  template <int kColumns, int kFirst, class Sums>
  TILEWISE_INLINE static void issue(Sums& sums, WgmmaRegisters (&to)[kBatch], const Chunk (&bits)[2],
                                    const Factor (&factor)[2], MatrixDescriptor x, int half, bool accumulate) {
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      TILEWISE_UNROLL
      for (int w = 0; w < 4; ++w) {
        const uint32_t word = bits[slot].word[w];
        to[w / 2].word[w % 2 * 2 + slot] = Widen::multiply(Widen::template pair<kFirst>(word), factor[slot]);
        to[2 + w / 2].word[w % 2 * 2 + slot] = Widen::multiply(Widen::template pair<kFirst + 1>(word), factor[slot]);
      }
    }
    if ((factor[0].rest | factor[1].rest) != 0) multiply_by_rest(to, factor);
    Machine::wgmma_fence();
    using Rows = SwizzledTile<kColumns, kPackedDepth>;
    TILEWISE_UNROLL
    for (int s = 0; s < kBatch; ++s) {
      const int step = 4 * (kFirst + s / 2) + 2 * half + s % 2;
      Machine::template wgmma<C.type, kKMajor>(sums.tile[0], to[s], x.advanced(k_major_step<Rows>(step)),
                                               s > 0 || accumulate, true);
    }
    Machine::wgmma_commit();
    Machine::template wgmma_wait<1>();
  }
  TILEWISE_INLINE static void multiply_by_rest(WgmmaRegisters (&to)[kBatch], const Factor (&factor)[2]) {
    Factor left[2] = {factor[0], factor[1]};
    while ((left[0].rest | left[1].rest) != 0) {
      TILEWISE_UNROLL
      for (Factor& f : left) f = Widen::next(f);
      TILEWISE_UNROLL
      for (int i = 0; i < 4 * kBatch; ++i) {
        uint32_t& word = to[i / 4].word[i % 4];
        word = Widen::multiply(word, left[i % 2]);
      }
    }
  }

  Scales& shared_;
  RingPlace<C.scale_windows> place_;
};

}  // namespace tilewise::device
