// Where what belongs to a decode call's keys lies, as tables: key after key in memory, or page after page of a cache.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/elements.h"
#include "backends/cpu/kernels.hpp"

namespace tilewise::backends::cpu {

/// The block of keys that is computed and, where there are pages, the one after it, which is fetched ahead. Keys of a
/// block that the call does not read have the place of one that it reads: no other memory is touched, and no other
/// entry of a page table. Of an instruction set's vectors V: what is not inlined is then that set's own.
template <class V, int64_t kBlock>
class KeyPlaces {
 public:
  static constexpr int64_t kKeys = kBlock;     // of a block
  static constexpr int64_t kRing = 2 * kKeys;  // entries of a table: where there are pages, key j's is j % kRing
  enum Stream : int { kK, kV, kKScale, kVScale, kCount };

  /// Of a call that reads keys [begin, end).
  TILEWISE_INLINE KeyPlaces(const KeyStream& s, int64_t begin, int64_t end)
      : pages_(s.table.pages),
        page_size_(s.table.page_size),
        begin_(begin),
        end_(pages_ != nullptr && s.end > end ? s.end : end),
        used_(s.k_scales.scales != nullptr ? kCount : kKScale),
        page_strides_{s.table.k_stride, s.table.v_stride, s.k_scales.page_stride, s.v_scales.page_stride},
        strides_{s.k_stride, s.v_stride, s.k_scales.key_stride, s.v_scales.key_stride} {}

  /// On to the block that starts at `key`, a multiple of kKeys: the first one, then each in turn.
  [[gnu::noinline]] void move_to(int64_t key) {
    key_ = key;
    if (pages_ == nullptr) return fill_strided();
    if (!filled_) fill_paged(key);
    fill_paged(key + kKeys);
    filled_ = true;
  }

  [[nodiscard]] TILEWISE_INLINE bool paged() const { return pages_ != nullptr; }
  /// From the stream's key 0 or page 0 to what the table counts from. Of k and v in bytes, of scales in floats.
  [[nodiscard]] TILEWISE_INLINE int64_t origin(Stream s) const { return paged() ? 0 : key_ * strides_[s]; }
  /// From there to each key of the block.
  [[nodiscard]] TILEWISE_INLINE const int64_t* block(Stream s) const { return at_[s] + (paged() ? key_ % kRing : 0); }
  /// The same of the block after it: from where, beyond this one's origin, and to each key.
  [[nodiscard]] TILEWISE_INLINE int64_t step(Stream s) const { return paged() ? 0 : kKeys * strides_[s]; }
  [[nodiscard]] TILEWISE_INLINE const int64_t* ahead(Stream s) const {
    return at_[s] + (paged() ? (key_ + kKeys) % kRing : 0);
  }
  /// The whole table where there are pages; else null.
  [[nodiscard]] TILEWISE_INLINE const int64_t* ring(Stream s) const { return paged() ? at_[s] : nullptr; }

 private:
  /// Whole blocks are alike.
  TILEWISE_INLINE void fill_strided() {
    const int64_t first = begin_ - key_, last = end_ - 1 - key_;
    const bool whole = first <= 0 && last >= kKeys - 1;
    if (whole && filled_) return;
    filled_ = whole;
    for (int s = 0; s < used_; ++s)
      for (int64_t j = 0; j < kKeys; ++j) at_[s][j] = (j > last ? last : j < first ? first : j) * strides_[s];
  }

  TILEWISE_INLINE void fill_paged(int64_t key) {
    const int64_t first = key > begin_ ? key : begin_, last = key + kKeys < end_ ? key + kKeys : end_;
    if (first >= last) return;
    const int64_t first_page = first / page_size_, first_place = first % page_size_;
    for (int s = 0; s < used_; ++s) {
      int64_t* at = at_[s] + key % kRing;
      const int64_t stride = strides_[s];
      int64_t page = first_page, place = first_place;
      for (int64_t j = first - key; j < last - key; ++page, place = 0) {
        const int64_t left = page_size_ - place, until = left < last - key - j ? j + left : last - key;
        for (int64_t next = pages_[page] * page_strides_[s] + place * stride; j < until; ++j, next += stride)
          at[j] = next;
      }
      for (int64_t j = 0; j < first - key; ++j) at[j] = at[first - key];
      for (int64_t j = last - key; j < kKeys; ++j) at[j] = at[last - key - 1];
    }
  }

  const int32_t* pages_;
  int64_t page_size_, begin_, end_, key_ = 0;
  int used_;
  bool filled_ = false;
  int64_t page_strides_[kCount], strides_[kCount];
  int64_t at_[kCount][kRing] = {};
};

}  // namespace tilewise::backends::cpu
