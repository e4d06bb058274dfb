// Microseconds to text; see duration.hpp.
#include "core/duration.hpp"

#include <array>
#include <cstdio>

namespace tilewise::core {
namespace {

struct Unit {
  double microseconds;
  const char* name;
};

constexpr std::array<Unit, 6> kUnits{
    {{1.0, "us"}, {1e3, "ms"}, {1e6, "s"}, {60e6, "min"}, {3600e6, "h"}, {86400e6, "days"}}};

/// The largest unit of which there is one, judged by the three digits that are printed.
const Unit& unit_of(double microseconds) {
  constexpr double kRoundsUp = 0.9995;
  const Unit* best = kUnits.data();
  for (const Unit& unit : kUnits) {
    if (microseconds >= kRoundsUp * unit.microseconds) best = &unit;
  }
  return *best;
}

}  // namespace

std::string duration_text(double microseconds) {
  const Unit& unit = unit_of(microseconds);
  const double value = microseconds / unit.microseconds;
  const char* format = value >= 99.95 ? (value < 1e6 ? "%.0f %s" : "%.2e %s") : value >= 9.995 ? "%.1f %s" : "%.2f %s";
  std::array<char, 48> text;
  std::snprintf(text.data(), text.size(), format, value, unit.name);
  return text.data();
}

}  // namespace tilewise::core
