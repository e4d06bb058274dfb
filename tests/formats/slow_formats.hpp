// Narrow formats by their definitions, in doubles and by search: what conversions and quantised tensors are compared
// with. Nothing of the library is used here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace tilewise::test {

/// Sign, exponent and mantissa, in bits. The all-ones codes are numbers, NaN (that one alone), or infinity and NaN.
class Definition {
 public:
  enum class Top : std::uint8_t { numbers, one_nan, ieee };

  Definition(int exponent_bits, int mantissa_bits, int bias, Top top) : codes_(1u << (exponent_bits + mantissa_bits)) {
    for (std::uint32_t code = 0; code < codes_; ++code) {
      const std::uint32_t exponent = code >> mantissa_bits, mantissa = code % (1u << mantissa_bits);
      const double fraction = mantissa / std::pow(2.0, mantissa_bits);
      double value = exponent == 0 ? fraction * std::pow(2.0, 1 - bias)
                                   : (1.0 + fraction) * std::pow(2.0, static_cast<int>(exponent) - bias);
      if (top == Top::one_nan && code == codes_ - 1) value = std::numeric_limits<double>::quiet_NaN();
      if (top == Top::ieee && exponent == (1u << exponent_bits) - 1)
        value = mantissa == 0 ? HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
      values_.push_back(value);
      if (std::isfinite(value)) largest_ = std::max(largest_, value);
    }
  }

  /// Of one sign.
  [[nodiscard]] std::uint32_t codes() const { return codes_; }
  [[nodiscard]] double largest() const { return largest_; }
  [[nodiscard]] double value(std::uint32_t code) const {
    const double magnitude = values_[code % codes_];
    return code >= codes_ ? -magnitude : magnitude;
  }

  /// The code of the nearest finite number; of two equally near ones that with an even code.
  [[nodiscard]] std::uint32_t nearest(double number) const {
    std::uint32_t best = 0;
    for (std::uint32_t code = 0; code < codes_; ++code) {
      if (!std::isfinite(values_[code])) continue;
      const double distance = std::abs(values_[code] - std::abs(number));
      const double least = std::abs(values_[best] - std::abs(number));
      if (distance < least || (distance == least && code % 2 == 0)) best = code;
    }
    return best + (std::signbit(number) ? codes_ : 0);
  }

 private:
  std::uint32_t codes_;
  std::vector<double> values_;
  double largest_ = 0.0;
};

inline const Definition kE4m3{4, 3, 7, Definition::Top::one_nan};
inline const Definition kE5m2{5, 2, 15, Definition::Top::ieee};
inline const Definition kE2m1{2, 1, 1, Definition::Top::numbers};

}  // namespace tilewise::test
