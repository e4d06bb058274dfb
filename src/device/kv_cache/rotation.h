// Rows of queries or keys, rotated to their positions.
#pragma once

#include "device/common/mask.h"
#include "device/kv_cache/params.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// How a call rotates. kFloatTables: tables in fp32, else in kElement.
template <class Machine_, int kElement_, bool kRotates_, bool kInterleaved_, bool kFloatTables_>
struct Rotation {
  using Machine = Machine_;
  static constexpr int kElement = kElement_;
  static constexpr bool kRotates = kRotates_, kInterleaved = kInterleaved_, kFloatTables = kFloatTables_;
};

/// Of a sequence's first new key.
template <class Machine>
TILEWISE_INLINE int64_t first_position(const RotaryTables& r, const CacheShape& c, int64_t batch) {
  if (r.seqlens) return Machine::load_global(r.seqlens + batch);
  return c.cache_seqlens ? Machine::load_global(c.cache_seqlens + batch) : c.cache_seqlen;
}

/// Tables at a position.
template <class Rotation>
class RotaryAngles {
  using Machine = typename Rotation::Machine;
  using Bits = ElementBits<Rotation::kElement>;
  using Entry = Choose<Rotation::kFloatTables, float, Bits>;

 public:
  /// cos and sin of a pair.
  struct Angle {
    Entry cos, sin;
    TILEWISE_INLINE float cosine(int) const { return widened(cos); }
    TILEWISE_INLINE float sine(int) const { return widened(sin); }
  };
  /// Of kChunk pairs that follow each other.
  struct AngleRun {
    static constexpr int kChunks = Rotation::kFloatTables ? 2 : 1;
    Chunk cos[kChunks], sin[kChunks];
    TILEWISE_INLINE float cosine(int i) const { return entry(cos, i); }
    TILEWISE_INLINE float sine(int i) const { return entry(sin, i); }

   private:
    TILEWISE_INLINE static float entry(const Chunk (&chunks)[kChunks], int i) {
      if constexpr (Rotation::kFloatTables) return __builtin_bit_cast(float, chunks[i / 4].word[i % 4]);
      return widened(chunks[0].element(i));
    }
  };

  TILEWISE_INLINE RotaryAngles(const RotaryTables& tables, int64_t position) {
    const int64_t row = clamp_to(position, 0, tables.rows - 1);
    cos_ = static_cast<const Entry*>(tables.cos) + row * tables.cos_stride;
    sin_ = static_cast<const Entry*>(tables.sin) + row * tables.sin_stride;
  }
  /// Of pair i.
  TILEWISE_INLINE Angle load(int64_t i) const {
    return {Machine::load_global(cos_ + i), Machine::load_global(sin_ + i)};
  }
  /// From pair i on, which lies on 16 bytes.
  TILEWISE_INLINE AngleRun load_run(int64_t i) const {
    AngleRun run;
    TILEWISE_UNROLL
    for (int part = 0; part < AngleRun::kChunks; ++part) {
      run.cos[part] = Machine::load_global(reinterpret_cast<const Chunk*>(cos_ + i) + part);
      run.sin[part] = Machine::load_global(reinterpret_cast<const Chunk*>(sin_ + i) + part);
    }
    return run;
  }

  TILEWISE_INLINE static float widened(Bits bits) { return element_to_float<Rotation::kElement>(bits); }

 private:
  TILEWISE_INLINE static float widened(float entry) { return entry; }

  const Entry *cos_, *sin_;
};

/// (x, y) turned by an angle. Keys, which stay, are what the reference rounds, bit for bit: products of Exact numbers
/// are exact, so that their sum alone is rounded.
template <class Rotation>
using Exact = Choose<Rotation::kFloatTables, double, float>;
template <class Number>
TILEWISE_INLINE float turned_x(Number x, Number y, float cosine, float sine) {
  return static_cast<float>(x * cosine - y * sine);
}
template <class Number>
TILEWISE_INLINE float turned_y(Number x, Number y, float cosine, float sine) {
  return static_cast<float>(x * sine + y * cosine);
}

/// A row's elements, rotated to its position where its tensor is.
template <class Rotation>
class RotatedRow {
  using Machine = typename Rotation::Machine;
  using Angles = RotaryAngles<Rotation>;
  using Bits = ElementBits<Rotation::kElement>;

 public:
  TILEWISE_INLINE RotatedRow(const RotaryTables& tables, const Bits* row, int64_t position)
      : r_(tables), row_(row), angles_(tables, position) {}

  TILEWISE_INLINE float value(int64_t d) const {
    if constexpr (!Rotation::kRotates) return Angles::widened(bits(d));
    const Turn t = turn_of(d);
    return t.is_turned ? turned(t) : Angles::widened(bits(t.x));
  }
  /// In the row's own type.
  TILEWISE_INLINE Bits rounded(int64_t d) const {
    if constexpr (!Rotation::kRotates) return bits(d);
    const Turn t = turn_of(d);
    const auto rounded = static_cast<Bits>(Machine::template pack<Rotation::kElement>(turned(t), 0.0f));
    return t.is_turned ? rounded : bits(t.x);
  }

 private:
  /// What an element comes from: one that does not turn asks for what it does not need, and no load waits for a branch.
  struct Turn {
    int64_t x, y, angle;
    bool is_turned, is_second;
  };
  TILEWISE_INLINE Turn turn_of(int64_t d) const {
    const int64_t at = d - r_.offset, half = r_.dim / 2;
    const bool turned = at >= 0 && at < r_.dim;
    const bool second = Rotation::kInterleaved ? at % 2 != 0 : at >= half;
    const int64_t pair = Rotation::kInterleaved ? at / 2 : second ? at - half : at;
    const int64_t x = r_.offset + (Rotation::kInterleaved ? 2 * pair : pair);
    return {turned ? x : d, turned ? x + (Rotation::kInterleaved ? 1 : half) : d, turned ? pair : 0, turned, second};
  }
  TILEWISE_INLINE float turned(const Turn& t) const {
    const Exact<Rotation> x = Angles::widened(bits(t.x)), y = Angles::widened(bits(t.y));
    const auto angle = angles_.load(t.angle);
    return t.is_second ? turned_y(x, y, angle.cosine(0), angle.sine(0))
                       : turned_x(x, y, angle.cosine(0), angle.sine(0));
  }
  TILEWISE_INLINE Bits bits(int64_t d) const { return Machine::load_global(row_ + d); }

  const RotaryTables& r_;
  const Bits* row_;
  Angles angles_;
};

}  // namespace tilewise::device
