// New keys and values on their way into a cache, 16 bytes at a time: what the lanes of a block ask for waits for
// nothing that another asked for.
#pragma once

#include "device/kv_cache/new_rows.h"

namespace tilewise::device {

/// C: an AppendKvConfig with vector_rows. A row of a key head is units: each two chunks of a key that turn into each
/// other, or one chunk of a key or of a value.
template <class Machine, auto C, class Rows = NewRows<Machine, C>>
class NewChunks {
  using Stream = typename Rows::Stream;
  using Bits = ElementBits<C.type>;
  using CacheBits = ElementBits<C.cache_type>;
  using Turn = Rotation<Machine, C.type, C.rotary != 0, C.interleaved != 0, C.float_tables != 0>;
  using Angles = RotaryAngles<Turn>;
  using AngleRun = typename Angles::AngleRun;
  static_assert(C.scales != kTokenScales, "a token's scale needs its whole row");

 public:
  template <class Params>
  TILEWISE_INLINE explicit NewChunks(const Params& p) {
    const int64_t rotary_dim = C.rotary ? p.rotary.dim : 0;
    turning_ = static_cast<int>(rotary_dim) / (2 * kChunk);
    of_key_ = static_cast<int>(append_units(p.shape.head_dim, 0, rotary_dim));
    of_row_ = static_cast<int>(append_units(p.shape.head_dim, Rows::value_dim(p), rotary_dim));
  }
  TILEWISE_INLINE int units() const { return of_row_; }

  /// What a lane has asked for.
  struct Unit {
    CacheBits* to;  // null: nowhere
    int second;     // from the first chunk to the second; 0: there is none
    float scale;
    Chunk chunk[2];
    AngleRun angles;
  };

  template <class Params>
  TILEWISE_INLINE Unit load(const Params& p, const NewRow& row, int64_t head, int number) const {
    Unit unit{};
    const CachePlace place = Rows::place_of(p, row);
    if (place.row == kNowhere) return unit;
    const bool is_key = number < of_key_, turns = number < turning_;
    const Stream stream = is_key ? Rows::keys(p) : Rows::values(p);
    int col = (is_key ? number - turning_ : number - of_key_) * kChunk;
    if constexpr (C.rotary != 0) {
      const int dim = static_cast<int>(p.rotary.dim), offset = static_cast<int>(p.rotary.offset);
      if (is_key && !turns && col >= offset) col += dim;
      if (turns) {
        col = offset + number * kChunk * (C.interleaved ? 2 : 1);
        unit.second = C.interleaved ? kChunk : dim / 2;
        const Angles angles(p.rotary, first_position<Machine>(p.rotary, p.cache, row.batch) + row.index);
        unit.angles = angles.load_run(number * kChunk);
      }
    }
    const Bits* const from = Rows::address(p, stream, row, head) + col;
    unit.to = Rows::address(stream, place, head) + col;
    unit.scale = Rows::block_scale(stream, row.batch, head);
    unit.chunk[0] = Machine::load_global(reinterpret_cast<const Chunk*>(from));
    if (turns) unit.chunk[1] = Machine::load_global(reinterpret_cast<const Chunk*>(from + unit.second));
    return unit;
  }

  TILEWISE_INLINE static void store(const Unit& unit) {
    if (!unit.to) return;
    if (!C.rotary || unit.second == 0) return store(unit.to, unit.chunk[0], unit.scale);
    float element[2 * kChunk];
    TILEWISE_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      const int x_at = C.interleaved ? 2 * i : i, y_at = C.interleaved ? 2 * i + 1 : kChunk + i;
      const Exact<Turn> x = element_at(unit.chunk, x_at), y = element_at(unit.chunk, y_at);
      element[x_at] = turned_x(x, y, unit.angles.cosine(i), unit.angles.sine(i));
      element[y_at] = turned_y(x, y, unit.angles.cosine(i), unit.angles.sine(i));
    }
    store(unit.to, element, unit.scale);
    store(unit.to + unit.second, element + kChunk, unit.scale);
  }

 private:
  TILEWISE_INLINE static float element_at(const Chunk* chunks, int i) {
    return Angles::widened(chunks[i / kChunk].element(i % kChunk));
  }
  TILEWISE_INLINE static void store(CacheBits* to, const Chunk& chunk, float scale) {
    if constexpr (C.cache_type == kE4m3) {
      float element[kChunk];
      TILEWISE_UNROLL
      for (int i = 0; i < kChunk; ++i) element[i] = element_at(&chunk, i);
      store(to, element, scale);
    } else {
      Machine::store_global(reinterpret_cast<Chunk*>(to), chunk);
    }
  }
  TILEWISE_INLINE static void store(CacheBits* to, const float* element, float scale) {
    if constexpr (C.cache_type == kE4m3) {
      HalfChunk bytes{};
      TILEWISE_UNROLL
      for (int i = 0; i < kChunk; i += 2) {
        bytes.word[i / 4] |= pack_e4m3<Machine>(element[i] / scale, element[i + 1] / scale) << (8 * (i % 4));
      }
      Machine::store_global(reinterpret_cast<HalfChunk*>(to), bytes);
    } else {
      Chunk chunk;
      TILEWISE_UNROLL
      for (int i = 0; i < kChunk; i += 2) {
        chunk.word[i / 2] = Machine::template pack<C.type>(element[i], element[i + 1]);
      }
      Machine::store_global(reinterpret_cast<Chunk*>(to), chunk);
    }
  }

  int turning_, of_key_, of_row_;
};

}  // namespace tilewise::device
