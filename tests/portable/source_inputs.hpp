// What functions of the score are printed for: tables of three types, any score, and places in long sequences.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "expression/bounds.hpp"
#include "expression/device_source.hpp"

namespace tilewise::expression {

inline const std::vector<DeviceTable> kTables{{DType::f32}, {DType::i32}, {DType::boolean}};
inline constexpr std::int64_t kMostRows = std::int64_t{1} << 29;
/// Of score, b, h, q_idx and kv_idx.
inline const std::vector<Interval> kInputs{Interval::of_reals(-HUGE_VAL, HUGE_VAL, true),
                                           Interval::of_integers(0, 1000), Interval::of_integers(0, 1000),
                                           Interval::of_integers(0, kMostRows), Interval::of_integers(0, kMostRows)};

}  // namespace tilewise::expression
