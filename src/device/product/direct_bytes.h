// DirectProduct of fp8 bytes, multiplied as they are: the second operand goes from memory straight to registers, a
// step's bytes as soon as nobody needs the last step's, and is translated beside products where machines want other
// bytes.
#pragma once

#include "device/product/product.h"
#include "device/tile/byte_numbers.h"

namespace tilewise::device {

/// A wave's own rows of an operand in pieces of 64 bytes of 32 rows, in the order of their use: column by column where
/// a step's sums are scaled, since few of them fit beside those of all, else depth by depth, for which fewer rows of
/// the other operand are held.
template <class Ops, ProductConfig C, int kColTiles, int kDeep>
class HeldRows {
  using Machine = typename Ops::Machine;
  using Bytes = typename Ops::Bytes;
  using HalfBytes = typename Ops::HalfBytes;

 public:
  static constexpr int kPieces = kColTiles * kDeep, kWords = 8;
  static constexpr bool kByColumns = C.scaled_depth() != 0;
  TILEWISE_INLINE static constexpr int column(int piece) { return kByColumns ? piece / kDeep : piece % kColTiles; }
  TILEWISE_INLINE static constexpr int depth(int piece) { return kByColumns ? piece % kDeep : piece / kColTiles; }

  TILEWISE_INLINE HeldRows(const OperandRows& b, int first_col) {
    const int lane = Machine::lane();
    TILEWISE_UNROLL
    for (int c = 0; c < kColTiles; ++c) {
      const int64_t line = memory_row<Machine, C.b>(b, first_col + 32 * c + lane % 32);
      from_[c] = b.data + line * b.line_stride + lane / 32 * 16;
    }
  }

  TILEWISE_INLINE void load(int piece, int64_t first) {
    // An offset that is not known earlier keeps the load behind the products that need what was there before.
    const int skip = Machine::not_hoisted(depth(piece) * 64);
    const auto* const from = reinterpret_cast<const HalfBytes*>(from_[column(piece)] + first + skip);
    TILEWISE_UNROLL
    for (int i = 0; i < 2; ++i) held_[piece].half[i] = Machine::load_global(from + 2 * i);
  }
  TILEWISE_INLINE const Bytes& piece(int i) const { return held_[i]; }
  TILEWISE_INLINE void translate(int piece, int word) {
    HalfBytes& half = held_[piece].half[word / 4];
    half[word % 4] = translated_word<Machine>(half[word % 4], nans_[column(piece)]);
  }
  TILEWISE_INLINE const ByteNans& nans(int col_tile) const { return nans_[col_tile]; }

 private:
  const uint8_t* from_[kColTiles];
  Bytes held_[kPieces];
  ByteNans nans_[kColTiles];
};

template <TileOps Ops, ProductConfig C>
class DirectBytes {
  using Machine = typename Ops::Machine;
  using Accumulator = typename Ops::Accumulator;
  using TileA = OperandTile<Ops, C, C.a, C.block_m>;
  using LoaderA = OperandLoader<Ops, C, C.a, C.block_m>;
  static constexpr int kRowTiles = C.wave_rows() / 32, kColTiles = C.wave_columns() / 32, kDeep = C.block_k / 64;
  using Held = HeldRows<Ops, C, kColTiles, kDeep>;
  static constexpr int kPieces = Held::kPieces, kProducts = kRowTiles * Machine::kByteProducts;
  static constexpr bool kScaled = C.scaled_depth() != 0, kTranslates = kKnowsFnuz<Machine>;
  static_assert(C.in_bytes() && C.waves == C.waves_n && C.stages == 2 && C.block_k % 64 == 0);
  static_assert(!kScaled || C.scaled_depth() == C.block_k, "a step has one scale");
  static_assert(C.b.scale_use != kScaleSums || C.b.scale_rows % 32 == 0, "columns of an instruction share their scale");

 public:
  using Sums = MatrixSums<Ops, C>;
  struct Shared {
    TileA stage[2];
  };

  /// As Product::run(); begin and end are multiples of block_k.
  TILEWISE_INLINE static void run(Shared& shared, const OperandRows& a, const OperandRows& b, int64_t begin,
                                  int64_t end, Sums& sums) {
    if (begin >= end) return;
    const auto last = static_cast<int32_t>((end - begin) / C.block_k) - 1;
    LoaderA load_a(a);
    Held held(b, sums.first_col());
    // Behind the last step comes the last one again, which nobody multiplies: no branch holds loads back.
    const auto depth = [&](int32_t step) { return begin + int64_t{minimum(step, last)} * C.block_k; };
    load_a.start(shared.stage[0], begin, end, true);
    TILEWISE_UNROLL
    for (int i = 0; i < kPieces; ++i) held.load(i, begin);
    Factors factors(a, b, begin, sums);
    load_a.finish(shared.stage[0]);
    TILEWISE_UNROLL
    for (int i = 0; i < Held::kWords; ++i) held.translate(0, i);
    TILEWISE_NO_UNROLL
    for (int32_t step = 0; step <= last; ++step) {
      Machine::barrier();  // this step's rows of a are there, and nobody reads the last step's any more
      load_a.start(shared.stage[(step + 1) % 2], depth(step + 1), end, true);
      const Factors next(a, b, depth(step + 1), sums);
      multiply(shared.stage[step % 2], held, depth(step + 1), factors, sums);
      factors = next;
      load_a.finish(shared.stage[(step + 1) % 2]);
    }
    if constexpr (!kScaled) sums.multiply_by(kUnitOfByteProducts<Machine>);
    if constexpr (kTranslates) {
      Machine::barrier();
      load_a.leave_nans(shared.stage[0]);
      Machine::barrier();
      sums.poison([&](int row) { return nans_of_row<Machine>(shared.stage[0], row); },
                  [&](int c) { return held.nans(c); });
    }
  }

 private:
  /// What a step's sums are multiplied by.
  struct Factors {
    RowValues<Sums::kSlots> row;
    float column[kColTiles];

    TILEWISE_INLINE Factors(const OperandRows& a, const OperandRows& b, int64_t depth, const Sums& sums) {
      row.fill(kUnitOfByteProducts<Machine>);
      if constexpr (C.a.scale_use == kScaleSums) {
        TILEWISE_UNROLL
        for (int slot = 0; slot < Sums::kSlots; ++slot)
          row[slot] *= operand_scale<Machine, C.a>(a, sums.row_of_slot(slot), depth);
      }
      TILEWISE_UNROLL
      for (int c = 0; c < kColTiles; ++c) {
        column[c] = 1.0f;
        if constexpr (C.b.scale_use == kScaleSums)
          column[c] = operand_scale<Machine, C.b>(b, sums.first_col() + 32 * c, depth);
      }
    }
  };

  /// Piece by piece: while one is multiplied the next is translated, some words beside each product, from the last one
  /// on the next step's first.
  TILEWISE_INLINE static void multiply(const TileA& a, Held& held, int64_t next_depth, const Factors& factors,
                                       Sums& sums) {
    constexpr int kOwnDeep = Held::kByColumns ? kDeep : 1;
    typename Ops::Bytes own[kOwnDeep][kRowTiles];
    TILEWISE_UNROLL
    for (int i = 0; i < kOwnDeep * kRowTiles; ++i)
      own[i / kRowTiles][i % kRowTiles] = Ops::read_bytes(a, i % kRowTiles * 32, i / kRowTiles);
    Accumulator part[kRowTiles];
    for_each_index<0, kPieces>([&](auto index) {
      constexpr int kPiece = decltype(index)::value, kCol = Held::column(kPiece), kDepth = Held::depth(kPiece);
      constexpr int kNext = (kPiece + 1) % kPieces;
      if constexpr (kScaled && kDepth == 0) {
        TILEWISE_UNROLL
        for (int r = 0; r < kRowTiles; ++r) part[r] = Accumulator{};
      }
      const auto accumulators = [&](int r) -> Accumulator& { return kScaled ? part[r] : sums.tile().tile[r][kCol]; };
      TILEWISE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        Ops::multiply_bytes(accumulators(r), held.piece(kPiece), own[kDepth % kOwnDeep][r], [&](int product) {
          if constexpr (kTranslates) {
            for_share<Held::kWords>(r * Machine::kByteProducts + product, kProducts,
                                    [&](int i) { held.translate(kNext, i); });
            keep_order<Machine>();
          }
        });
        if constexpr (!Held::kByColumns && kCol == kColTiles - 1 && kDepth + 1 < kDeep)
          own[0][r] = Ops::read_bytes(a, r * 32, kDepth + 1);
      }
      held.load(kPiece, next_depth);
      keep_order<Machine>();
      if constexpr (kScaled && kDepth == kDeep - 1) add_scaled(sums, part, factors, kCol);
    });
  }

  TILEWISE_INLINE static void add_scaled(Sums& sums, const Accumulator (&part)[kRowTiles], const Factors& factors,
                                         int col) {
    TILEWISE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      const float factor = factors.row[r] * factors.column[col];
      TILEWISE_UNROLL
      for (int i = 0; i < 16; ++i) {
        float& to = sums.tile().tile[r][col][i];
        to = fused_multiply_add(part[r][i], factor, to);
      }
    }
  }
};

}  // namespace tilewise::device
