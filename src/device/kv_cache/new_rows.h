// New keys, rotated, and values on their way into a cache, each rounded once: where they go, and how a wave takes one
// row of one head at a time, an element a lane. For the kernel that appends alone, and for one that attends, too.
#pragma once

#include "device/kv_cache/config.h"
#include "device/kv_cache/rotation.h"
#include "device/kv_cache/sequence.h"
#include "device/tile/contract.h"
#include "device/tile/widen.h"

namespace tilewise::device {

/// A row of new keys in memory, and which of its sequence it is. Packed rows of no sequence have a negative `index`.
struct NewRow {
  int64_t batch, row, index;
};

/// In the first two dimensions of the cache; nowhere what is skipped, or would lie outside.
struct CachePlace {
  int64_t row, place;
};
inline constexpr int64_t kNowhere = -1;

/// Row `number` of a call: of `seqlen` rows a sequence, or of packed ones, which are found by their cu_seqlens.
template <class Machine>
TILEWISE_INLINE NewRow new_row_at(int64_t number, int64_t seqlen, bool packed, const int32_t* cu_seqlens,
                                  int64_t batch_size) {
  if (!packed) return {number / seqlen, number % seqlen, number % seqlen};
  if (!cu_seqlens) return {0, number, number};
  int64_t low = 0, high = batch_size;  // the last entry that is no greater than the row
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (Machine::load_global(cu_seqlens + middle) <= number ? low : high) = middle;
  }
  return {low, number, number - Machine::load_global(cu_seqlens + low)};
}

/// C: an AppendKvConfig. Params: AppendKvParams, or without slots those of a kernel that attends.
template <class Machine, auto C>
class NewRows {
  using Bits = ElementBits<C.type>;
  using CacheBits = ElementBits<C.cache_type>;
  static constexpr int kAtOnce = 4;  // elements of a lane, none of which waits for another

 public:
  /// Keys or values of a call: where they come from and go.
  struct Stream {
    Tensor4 from, cache;  // values: of two streams' references no compiler would choose one in registers
    ScaleTensor scale;
    int64_t dim;
  };
  template <class Params>
  TILEWISE_INLINE static Stream keys(const Params& p) {
    return {p.new_keys.k, p.k, p.k_scale, p.shape.head_dim};
  }
  template <class Params>
  TILEWISE_INLINE static Stream values(const Params& p) {
    return {p.new_keys.v, p.v, p.v_scale, p.shape.head_dim_v};
  }

  /// Columns of the values that stand beside a key, 0 where there are none.
  template <class Params>
  TILEWISE_INLINE static int64_t value_dim(const Params& p) {
    return p.new_keys.appends_values ? p.shape.head_dim_v : 0;
  }

  template <class Params>
  TILEWISE_INLINE static void append_key(const Params& p, const NewRow& row, int64_t head) {
    append<C.rotary != 0>(p, keys(p), row, head);
  }
  template <class Params>
  TILEWISE_INLINE static void append_value(const Params& p, const NewRow& row, int64_t head) {
    append<false>(p, values(p), row, head);
  }

  template <class Params>
  TILEWISE_INLINE static const Bits* address(const Params& p, const Stream& stream, const NewRow& row, int64_t head) {
    return static_cast<const Bits*>(stream.from.data) + (p.new_keys.packed ? 0 : row.batch * stream.from.batch_stride) +
           row.row * stream.from.seq_stride + head * stream.from.head_stride;
  }
  TILEWISE_INLINE static CacheBits* address(const Stream& stream, const CachePlace& place, int64_t head) {
    return static_cast<CacheBits*>(stream.cache.data) + place.row * stream.cache.batch_stride +
           place.place * stream.cache.seq_stride + head * stream.cache.head_stride;
  }
  TILEWISE_INLINE static float block_scale(const Stream& stream, int64_t batch, int64_t head) {
    const ScaleTensor& t = stream.scale;
    if constexpr (C.scales != kBlockScale) return 1.0f;
    return t.data ? Machine::load_global(t.data + batch * t.batch_stride + head * t.head_stride) : t.value;
  }

  template <class Params>
  TILEWISE_INLINE static CachePlace place_of(const Params& p, const NewRow& row) {
    const CacheShape& c = p.cache;
    const CacheSequence s = cache_sequence_of<C>(p.shape, c, row.batch);
    if (row.index < 0 || row.index >= s.seqlen_new) return {kNowhere, 0};
    if constexpr (C.slot_bytes != 0) {
      const int64_t at = (p.new_keys.packed ? 0 : row.batch * p.slots_batch_stride) + row.row * p.slots_stride;
      const int64_t slot = C.slot_bytes == 8 ? Machine::load_global(static_cast<const int64_t*>(p.slots) + at)
                                             : Machine::load_global(static_cast<const int32_t*>(p.slots) + at);
      if (slot < 0 || slot >= c.rows * c.places) return {kNowhere, 0};
      return {slot / c.places, slot % c.places};
    } else {
      const int64_t place = s.cached + row.index;
      if (s.absent || s.lost || place >= p.shape.seqlen_k) return {kNowhere, 0};
      if constexpr (C.page_size == 0) {
        return {s.cache_row, place};
      } else {
        const int64_t page =
            Machine::load_global(c.block_table + row.batch * c.block_table_stride + place / C.page_size);
        return {page >= 0 && page < c.rows ? page : kNowhere, place % C.page_size};
      }
    }
  }

 private:
  template <bool kRotates>
  using Elements = RotatedRow<Rotation<Machine, C.type, kRotates, C.interleaved != 0, C.float_tables != 0>>;

  template <bool kRotates, class Params>
  TILEWISE_INLINE static void append(const Params& p, const Stream& stream, const NewRow& row, int64_t head) {
    const CachePlace place = place_of(p, row);
    if (place.row == kNowhere) return;
    const int64_t position = kRotates ? first_position<Machine>(p.rotary, p.cache, row.batch) + row.index : 0;
    const Elements<kRotates> elements(p.rotary, address(p, stream, row, head), position);
    CacheBits* const to = address(stream, place, head);
    float scale = 1.0f;
    if constexpr (C.scales != kNoScales) scale = scale_at(stream, elements, row.batch, place, head);
    for (int64_t first = Machine::lane(); first < stream.dim; first += kAtOnce * Machine::kLanes) {
      CacheBits stored[kAtOnce];
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int64_t d = minimum<int64_t>(first + i * Machine::kLanes, stream.dim - 1);
        if constexpr (C.cache_type == kE4m3) {
          stored[i] = static_cast<CacheBits>(pack_e4m3<Machine>(elements.value(d) / scale, 0.0f));
        } else {
          stored[i] = elements.rounded(d);
        }
      }
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int64_t d = first + i * Machine::kLanes;
        if (d < stream.dim) Machine::store_global(to + d, stored[i]);
      }
    }
  }

  /// The scale of a row; with scales per token it is made here, and written: the row's largest value becomes e4m3's.
  /// A NaN has no say, and a scale that vanishes is 1.
  template <class RowElements>
  TILEWISE_INLINE static float scale_at(const Stream& stream, const RowElements& elements, int64_t batch,
                                        const CachePlace& place, int64_t head) {
    const ScaleTensor& t = stream.scale;
    if constexpr (C.scales != kTokenScales) return block_scale(stream, batch, head);
    float largest = 0.0f;
    for (int64_t d = Machine::lane(); d < stream.dim; d += Machine::kLanes) {
      const float value = elements.value(d), magnitude = value < 0.0f ? -value : value;
      largest = magnitude > largest ? magnitude : largest;
    }
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) {
      largest = maximum(largest, Machine::shuffle_xor(largest, bit));
    }
    const float quotient = largest / kLargestE4m3, scale = quotient > 0.0f ? quotient : 1.0f;
    if (Machine::lane() == 0) {
      Machine::store_global(t.data + place.row * t.row_stride + place.place * t.place_stride + head * t.head_stride,
                            scale);
    }
    return scale;
  }
};

}  // namespace tilewise::device
