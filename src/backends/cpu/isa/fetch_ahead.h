// Requests for the rows of k or v that a decode call reads next, paced by its own work.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

/// Requests a block of rows while another one is computed, a line at a time and evenly over the
/// steps of that work: a core whose two dozen miss buffers are taken forgets a request. Two halves of
/// the block are requested side by side, for memory answers two streams sooner than one.
class FetchAhead {
 public:
  /// Of rows of `bytes` bytes, `stride` bytes apart.
  TILEWISE_INLINE FetchAhead(int64_t stride, int64_t bytes)
      : stride_(stride), row_lines_((bytes + kLine - 1) / kLine), adjacent_(stride == bytes) {}

  /// Starts on so many rows from `first` on, if any, to be through after `steps` steps.
  TILEWISE_INLINE void start(const char* first, int64_t rows, int64_t steps) {
    const int64_t half_rows = rows > 0 ? (rows + 1) / 2 : 0, lines = half_rows * row_lines_;
    row_ = line_ = first;
    half_ = half_rows * stride_;
    rows_left_ = adjacent_ ? 1 : half_rows;  // adjacent rows are one
    lines_left_ = adjacent_ ? lines : row_lines_;
    wait_ = lines > 0 ? 1 : kNever;
    period_ = lines > 0 && steps > lines ? steps / lines : 1;
    burst_ = (lines + steps - 1) / steps;
  }

  TILEWISE_INLINE void step() {
    if (--wait_ > 0) return;
    wait_ = period_;
    for (int64_t n = burst_; n > 0; --n) {
      __builtin_prefetch(line_, 0, 2);
      __builtin_prefetch(line_ + half_, 0, 2);
      line_ += kLine;
      if (--lines_left_ > 0) continue;
      lines_left_ = row_lines_;
      if (--rows_left_ > 0) {
        row_ += stride_;
        line_ = row_;
        continue;
      }
      wait_ = kNever;
      return;
    }
  }

 private:
  static constexpr int64_t kLine = 64, kNever = INT64_MAX;

  int64_t stride_, row_lines_;
  bool adjacent_;
  const char *row_ = nullptr, *line_ = nullptr;
  int64_t half_ = 0, rows_left_ = 0, lines_left_ = 0, wait_ = 0, period_ = 0, burst_ = 0;
};

}  // namespace tilewise::backends::cpu
