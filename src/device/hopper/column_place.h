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

/// An int that floats hold, of a column's place and others: what all columns of a lane have in common, and the rest,
/// which is a constant where loops over columns are unrolled. A sum of such takes no instruction a column.
struct RealPlace {
  float base, column;

  TILEWISE_INLINE operator float() const { return base + column; }
  TILEWISE_INLINE RealPlace operator-() const { return {-base, -column}; }
};
TILEWISE_INLINE RealPlace operator+(const RealPlace& a, const RealPlace& b) {
  return {a.base + b.base, a.column + b.column};
}
TILEWISE_INLINE RealPlace operator+(const RealPlace& a, float b) { return {a.base + b, a.column}; }
TILEWISE_INLINE RealPlace operator+(float a, const RealPlace& b) { return b + a; }
TILEWISE_INLINE RealPlace operator-(const RealPlace& a, const RealPlace& b) { return a + -b; }
TILEWISE_INLINE RealPlace operator-(const RealPlace& a, float b) { return a + -b; }
TILEWISE_INLINE RealPlace operator-(float a, const RealPlace& b) { return a + -b; }

/// Where floats hold the sum.
TILEWISE_INLINE RealPlace real_of(const ColumnPlace& place) {
  return {place.real_origin, static_cast<float>(place.column)};
}

}  // namespace tilewise::device
