// Comparing one output with the reference's.
#include "verify/compare.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/message.hpp"

namespace tilewise::verify {
namespace {

/// The root mean square error may be so many times what the model predicts, counted over at least so many elements.
constexpr double kNormSlack = 1.25;
constexpr std::int64_t kNormElements = 64;

std::string number(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.7g", value);
  return text.data();
}

class Comparison {
 public:
  Comparison(const Output& got, const Output& expected, const ErrorBounds& bounds)
      : got_(got), expected_(expected), bounds_(bounds) {
    report_.name = got.name;
  }

  OutputReport run() {
    const TensorView& view = got_.buffer.view();
    if (std::string stray = got_.buffer.find_stray_write({&view, 1}); !stray.empty()) {
      report_.failure = got_.name + ": " + stray;
      return report_;
    }
    std::size_t index = 0;
    for_each_element(
        view, [&](std::span<const std::int64_t> position, std::int64_t offset) { element(position, offset, index++); });
    finish();
    return report_;
  }

 private:
  void element(std::span<const std::int64_t> position, std::int64_t offset, std::size_t index) {
    const TensorView& view = got_.buffer.view();
    const bool untouched = bits_at(view, offset) == poison_of(view.dtype);
    if (got_.row_axis >= 0 && position[static_cast<std::size_t>(got_.row_axis)] >= got_.rows) {
      if (got_.rest_is_cleared) {
        const double cleared = got_.name == "softmax_lse" ? -HUGE_VAL : 0.0;
        if (untouched || value_at(view, offset) != cleared)
          fail(position, "not cleared, though its row belongs to no sequence");
      } else if (!untouched) {
        fail(position, "written, though its row belongs to no sequence");
      }
      return;
    }
    if (untouched) return fail(position, "never written");
    const double got = value_at(view, offset);
    const double expected = value_at(expected_.buffer.view(), offset_of(expected_.buffer.view(), position));
    if (!same_class(got, expected, bounds_.reach.empty() ? Reach::none : bounds_.reach[index]))
      return fail(position, core::concat("got ", number(got), ", the reference ", number(expected)));
    if (!std::isfinite(got)) return;
    const double error = std::abs(got - expected), rounding = unit_roundoff(view.dtype) * std::abs(expected);
    // Both sides round to the output's dtype. Where no term contributes, the result is exact.
    const bool exact = bounds_.limit[index] == 0.0;
    const double limit = exact ? 0.0 : bounds_.limit[index] + 2.0 * (rounding + smallest_rounding(view.dtype));
    const double sigma = exact ? 0.0 : std::hypot(bounds_.sigma[index], rounding + smallest_rounding(view.dtype));
    count(position, error, limit, sigma, got, expected);
  }

  /// Finite where the reference is. A log-sum-exp of -infinity says that nothing is seen, and a NaN must be one there.
  [[nodiscard]] bool same_class(double got, double expected, Reach reach) const {
    if (std::isfinite(got) || std::isfinite(expected))
      return std::isfinite(got) == std::isfinite(expected) || (std::isfinite(expected) && reach == Reach::may);
    if (got_.name == "softmax_lse") return std::isnan(got) ? expected != -HUGE_VAL : got == expected;
    return reach != Reach::must_nan || std::isnan(got);
  }

  void count(std::span<const std::int64_t> position, double error, double limit, double sigma, double got,
             double expected) {
    ++elements_;
    squared_error_ += error * error;
    squared_sigma_ += sigma * sigma;
    report_.max_error = std::max(report_.max_error, error);
    if (error <= limit) {
      if (limit > 0) report_.max_ratio = std::max(report_.max_ratio, error / limit);
      return;
    }
    ++beyond_;
    const double ratio = limit > 0 ? error / limit : HUGE_VAL;
    if (ratio <= report_.max_ratio) return;
    report_.max_ratio = ratio;
    worst_ =
        core::concat(describe_position(got_, position), ": got ", number(got), ", the reference ", number(expected),
                     limit > 0 ? core::concat(" (", number(ratio), " times the bound ", number(limit), ")")
                               : std::string(" (must be exact)"));
  }

  void fail(std::span<const std::int64_t> position, std::string_view what) {
    ++failures_;
    if (failures_ == 1) first_ = core::concat(describe_position(got_, position), ": ", what);
  }

  void finish() {
    if (elements_ >= kNormElements && squared_sigma_ > 0)
      report_.norm_ratio = std::sqrt(squared_error_ / squared_sigma_) / kNormSlack;
    if (failures_ > 0) {
      report_.failure = core::concat(first_, "; ", failures_, " such elements of ", elements_ + failures_);
    } else if (beyond_ > 0) {
      report_.failure = core::concat(worst_, "; ", beyond_, " of ", elements_, " elements beyond");
    } else if (report_.norm_ratio > 1.0) {
      report_.failure = core::concat(got_.name, ": root mean square error is ", number(report_.norm_ratio),
                                     " times its bound, though no element is beyond its own");
    }
  }

  const Output &got_, &expected_;
  const ErrorBounds& bounds_;
  OutputReport report_;
  std::string first_, worst_;
  std::int64_t failures_ = 0, beyond_ = 0, elements_ = 0;
  double squared_error_ = 0.0, squared_sigma_ = 0.0;
};

}  // namespace

std::string describe_position(const Output& output, std::span<const std::int64_t> position) {
  static constexpr std::array<std::string_view, 4> kData{"batch", "row", "head", "dim"};
  static constexpr std::array<std::string_view, 4> kLse{"", "batch", "head", "row"};
  static constexpr std::array<std::string_view, 4> kBias{"batch", "head", "query", "key"};
  static constexpr std::array<std::string_view, 4> kSink{"", "", "", "head"};
  const bool lse = output.name == "softmax_lse";
  std::span<const std::string_view> names = lse                      ? kLse
                                            : output.name == "dbias" ? kBias
                                            : output.name == "dsink" ? kSink
                                                                     : kData;
  if (!output.axes.empty()) names = output.axes;
  std::string text = core::concat(output.name, "[");
  for (std::size_t i = 0; i < position.size(); ++i) {
    if (i > 0) text += ", ";
    text += core::concat(names[names.size() - position.size() + i], " ", position[i]);
  }
  return text + "]";
}

std::string find_bit_difference(const Output& a, const Output& b) {
  const TensorView &view_a = a.buffer.view(), &view_b = b.buffer.view();
  std::string difference;
  std::int64_t count = 0;
  for_each_element(view_a, [&](std::span<const std::int64_t> position, std::int64_t offset) {
    if (a.row_axis >= 0 && position[static_cast<std::size_t>(a.row_axis)] >= a.rows) return;
    const std::int64_t other = offset_of(view_b, position);
    if (bits_at(view_a, offset) == bits_at(view_b, other)) return;
    if (count++ > 0) return;
    difference = core::concat(describe_position(a, position), ": ", number(value_at(view_a, offset)), " and ",
                              number(value_at(view_b, other)));
  });
  if (count > 0) difference += core::concat("; ", count, " elements differ");
  return difference;
}

OutputReport compare(const Output& got, const Output& expected, const ErrorBounds& bounds) {
  return Comparison(got, expected, bounds).run();
}

}  // namespace tilewise::verify
