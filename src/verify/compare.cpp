// Comparing one output with the reference's.
#include "verify/compare.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/message.hpp"
#include "verify/rounding.hpp"

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
    const std::uint64_t bits = bits_at(view, offset), poison = poison_of(view.dtype);
    if (got_.row_axis >= 0 && position[static_cast<std::size_t>(got_.row_axis)] >= got_.rows) {
      if (got_.rest_is_cleared) {
        const double cleared = got_.is_log_sum ? -HUGE_VAL : 0.0;
        if (bits == poison || value_at(view, offset) != cleared)
          fail(position, "not cleared, though its row is none of the call's");
      } else if (bits != poison) {
        fail(position, "written, though its row is none of the call's");
      }
      return;
    }
    const TensorView& reference = expected_.buffer.view();
    const std::int64_t there = offset_of(reference, position);
    const std::uint64_t expected_bits = bits_at(reference, there);
    // A narrow dtype has no pattern to spare: the poison may be the right result.
    const bool may_be_right = bits_of(view.dtype) < 16 && expected_bits == poison;
    if (bits == poison && !may_be_right && got_.model != Model::permutation) return fail(position, "never written");
    const double got = value_at(view, offset), expected = value_at(reference, there);
    switch (got_.model) {
      case Model::bits:
        return same_bits(position, bits, expected_bits, got, expected);
      case Model::permutation:
        return of_row(position, offset, there);
      default:
        return near(position, index, got, expected);
    }
  }

  void near(std::span<const std::int64_t> position, std::size_t index, double got, double expected) {
    const Reach reach = bounds_.reach.empty() ? Reach::none : bounds_.reach[index];
    if (reach == Reach::any || is_near_overflow(got, expected, index)) return;
    if (!same_class(got, expected, reach))
      return fail(position, core::concat("got ", number(got), ", the reference ", number(expected)));
    if (!std::isfinite(got)) return;
    const DType dtype = got_.buffer.view().dtype;
    const double error = std::abs(got - expected), rounding = unit_roundoff(dtype) * std::abs(expected);
    // Both sides round to the output's dtype. Where no term contributes, the result is exact.
    const bool exact = got_.model == Model::exact || bounds_.limit[index] == 0.0;
    const double limit = exact ? 0.0 : bounds_.limit[index] + 2.0 * (rounding + smallest_rounding(dtype));
    const double sigma = exact ? 0.0 : std::hypot(bounds_.sigma[index], rounding + smallest_rounding(dtype));
    count(position, error, limit, sigma, got, expected);
  }

  /// Whether a number that is too large for the output's dtype may be one that is not, within the bound: either side's.
  [[nodiscard]] bool is_near_overflow(double got, double expected, std::size_t index) const {
    if (got_.model != Model::bounded || std::isinf(got) == std::isinf(expected)) return false;
    const double infinite = std::isinf(got) ? got : expected, other = std::isinf(got) ? expected : got;
    const double limit = bounds_.limit[index];
    return std::isfinite(limit) &&
           std::copysign(1.0, infinite) * other + limit >= largest_finite(got_.buffer.view().dtype);
  }

  /// Finite where the reference is. What must be NaN is no infinity, and a log-sum is of one kind with the reference's.
  [[nodiscard]] bool same_class(double got, double expected, Reach reach) const {
    if (std::isfinite(got) || std::isfinite(expected))
      return std::isfinite(got) == std::isfinite(expected) || (std::isfinite(expected) && reach == Reach::may);
    if (got_.is_log_sum) return std::isnan(got) ? expected != -HUGE_VAL : got == expected;
    return reach != Reach::must_nan || std::isnan(got);
  }

  void same_bits(std::span<const std::int64_t> position, std::uint64_t got_bits, std::uint64_t expected_bits,
                 double got, double expected) {
    if (got_bits == expected_bits || (std::isnan(got) && std::isnan(expected))) {
      ++elements_;
      return;
    }
    fail(position, core::concat("got ", text(got_bits, got), ", the reference ", text(expected_bits, expected)));
  }

  /// An integer as it is, anything else as its number and bits.
  [[nodiscard]] std::string text(std::uint64_t bits, double value) const {
    switch (got_.buffer.view().dtype) {
      case DType::i64:
        return core::concat(static_cast<std::int64_t>(bits));
      case DType::i32:
      case DType::u8:
      case DType::boolean:
        return core::concat(static_cast<std::int64_t>(value));
      default:
        return core::concat(number(value), " (bits ", bits, ")");
    }
  }

  /// Gathers a row of the last dimension, and compares what it holds at its end.
  void of_row(std::span<const std::int64_t> position, std::int64_t offset, std::int64_t there) {
    const TensorView& view = got_.buffer.view();
    got_row_.push_back(bits_at(view, offset));
    expected_row_.push_back(bits_at(expected_.buffer.view(), there));
    if (position.empty() || position.back() + 1 < view.shape[position.size() - 1]) return;
    std::ranges::sort(got_row_);
    std::ranges::sort(expected_row_);
    if (got_row_ == expected_row_) {
      ++elements_;
    } else {
      const auto [mine, theirs] = std::ranges::mismatch(got_row_, expected_row_);
      fail(position.first(position.empty() ? 0 : position.size() - 1),
           core::concat("no permutation of the reference's row (in order, got ", bits_text(*mine), " where it has ",
                        bits_text(*theirs), ")"));
    }
    got_row_.clear();
    expected_row_.clear();
  }
  [[nodiscard]] std::string bits_text(std::uint64_t bits) const {
    alignas(8) std::uint64_t memory = bits;
    return text(bits, value_at({&memory, got_.buffer.view().dtype, {1}}, 0));
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
  std::vector<std::uint64_t> got_row_, expected_row_;
};

}  // namespace

std::string describe_position(const Output& output, std::span<const std::int64_t> position) {
  std::string text = core::concat(output.name, "[");
  for (std::size_t i = 0; i < position.size(); ++i) {
    if (i > 0) text += ", ";
    // A position may lack the last dimension, of a row as a whole.
    const std::size_t rank = static_cast<std::size_t>(output.buffer.view().rank);
    const bool named = output.axes.size() >= rank;
    text += core::concat(named ? output.axes[output.axes.size() - rank + i] : "", named ? " " : "", position[i]);
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
