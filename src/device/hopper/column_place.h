// The place of a column of scores as functions of scores take it: an int, and a float where these ask for one.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

/// Behind a lane's first column, which is converted once for all of them: a conversion would take four times as long
/// beside matrix products as a sum of floats.
struct ColumnPlace {
  int32_t origin;
  float real_origin;
  int32_t column;

  TILEWISE_INLINE explicit ColumnPlace(int32_t first) : ColumnPlace(first, static_cast<float>(first), 0) {}
  TILEWISE_INLINE ColumnPlace at(int32_t of_lane) const { return {origin, real_origin, of_lane}; }
  TILEWISE_INLINE operator int32_t() const { return origin + column; }

 private:
  TILEWISE_INLINE ColumnPlace(int32_t first, float real, int32_t of_lane)
      : origin(first), real_origin(real), column(of_lane) {}
};

/// Where floats hold the sum.
TILEWISE_INLINE float real_of(const ColumnPlace& place) { return place.real_origin + static_cast<float>(place.column); }

}  // namespace tilewise::device
