// Scales of quantised weights in the kernel for few rows: runs of each row's, on their way beside the weights.
#pragma once

#include "device/moe/sm90/config.h"
#include "device/moe/sm90/params.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

/// A run of each row as it lies in memory, from the 16 bytes on in which the first one lies.
template <MoeDecodeConfig C>
struct alignas(16) ScaleWindow {
  static constexpr int32_t kRowBytes = kScaleRowBytes, kStages = kScaleRun / C.stage_scale_bytes();
  uint8_t bytes[C.block_m() * kRowBytes];
};

/// The scales of a tile's rows of weights.
template <class Machine, MoeDecodeConfig C>
class TileScales {
  using Window = ScaleWindow<C>;

 public:
  /// `gates`: rows are gate's and up's, eight of each in turns. first, end: the tile's first one of each and how many
  /// there are.
  TILEWISE_INLINE TileScales(const ExpertScales& of, int32_t expert, bool gates, int32_t first, int32_t end)
      : of_(of), expert_(expert), gates_(gates), first_(first), end_(end) {}

  /// All lanes of a warp load the window that begins with a step's scales. Those past a row's end are whatever lies
  /// there; zeros stand for those of rows that are not there.
  TILEWISE_INLINE void load(Window& to, int32_t step, Barrier<Machine>& full) const {
    const int32_t begin = step * C.stage_scale_bytes();
    const int32_t count = minimum(of_.columns * C.scale_bytes() - begin, kScaleRun);
    for (int32_t r = Machine::lane(); r < C.block_m(); r += 32) {
      uint8_t* const row = to.bytes + r * Window::kRowBytes;
      const uint8_t* const from = row_of(r);
      if (of_.in_runs) {
        const int32_t before = bytes_before(from);
        TILEWISE_UNROLL
        for (int32_t at = 0; at < Window::kRowBytes; at += 16) {
          const bool there = from != nullptr && at < before + count;
          Machine::copy_async(row + at, there ? from + begin - before + at : of_.data, there);
        }
      } else {
        for (int32_t i = 0; i < count; ++i) {
          const int32_t column = (begin + i) / C.scale_bytes();
          const int64_t at = column * of_.column_stride + (begin + i) % C.scale_bytes();
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
  TILEWISE_INLINE int32_t place(int32_t r) const {
    return r * Window::kRowBytes + (of_.in_runs ? bytes_before(row_of(r)) : 0);
  }
  /// Returns the scale of a row's block, a byte or a float; of blocks that are not there zeros.
  template <class Scale>
  TILEWISE_INLINE Scale scale(const Window& window, int32_t place, int32_t block) const {
    static_assert(sizeof(Scale) == C.scale_bytes());
    if (block >= of_.columns) return Scale{};
    const int32_t at = block * C.scale_bytes() % kScaleRun;
    return Machine::template load_shared<Scale>(window.bytes + place + at);
  }
  /// The expert's own factor.
  TILEWISE_INLINE float global() const { return Machine::load_global(of_.global + expert_ * of_.global_stride); }

 private:
  TILEWISE_INLINE const uint8_t* row_of(int32_t r) const {
    const int32_t i = first_ + (gates_ ? r / 16 * 8 + r % 8 : r), gate = gates_ ? r / 8 % 2 : 0;
    const int32_t block = (gate * of_.gate_rows + i * of_.value_rows) >> C.scale_row_shift();
    const auto* const data = static_cast<const uint8_t*>(of_.data);
    return i < end_ ? data + expert_ * of_.expert_stride + block * of_.row_stride : nullptr;
  }
  /// A run begins with the 16 bytes that its first scale lies in. Windows are 32 bytes apart.
  TILEWISE_INLINE static int32_t bytes_before(const uint8_t* row) {
    return static_cast<int32_t>(reinterpret_cast<uintptr_t>(row) % 16);
  }

  const ExpertScales& of_;
  const int32_t expert_;
  const bool gates_;
  const int32_t first_, end_;
};

}  // namespace tilewise::device
