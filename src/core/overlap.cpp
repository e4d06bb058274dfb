// Shared memory of strided tensors; see overlap.hpp.
#include "core/overlap.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "core/packed.hpp"

namespace tilewise::core {
namespace {

/// Sums of two tensors' extents, each below 2^63 bytes, fit.
using Wide = __int128;

/// What one axis adds to an address: 0 to `count` times `step` bytes.
struct Term {
  std::uint64_t step;
  Wide count;
};

/// Terms in the order of their steps. std::sort() on so few makes g++ 12 see accesses out of bounds.
template <std::size_t capacity>
struct Terms {
  void add(std::uint64_t step, Wide count) {
    std::size_t place = size++;
    for (; place > 0 && terms[place - 1].step > step; --place) terms[place] = terms[place - 1];
    terms[place] = {step, count};
  }
  std::array<Term, capacity> terms{};
  std::size_t size = 0;
};

/// Whether a sum of terms can lie in an interval. Terms whose steps are no longer than the interval only widen it;
/// for the others the largest is tried in every place that the rest can complete.
class Sums {
 public:
  void add(std::uint64_t step, Wide count) {
    if (step > 0 && count > 0) given_.add(step, count);
  }

  /// True too where it takes too long to tell.
  [[nodiscard]] bool reach(Wide low, Wide high) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < given_.size; ++i) {
      const Term& term = given_.terms[i];
      if (Wide{term.step} <= high - low + 1) {
        low -= extent(term);
      } else if (kept > 0 && terms_[kept - 1].step == term.step) {
        terms_[kept - 1].count += term.count;
      } else {
        terms_[kept++] = term;
      }
    }
    for (std::size_t i = 0; i < kept; ++i) {
      divisors_[i] = std::gcd(i > 0 ? divisors_[i - 1] : 0, terms_[i].step);
      totals_[i] = (i > 0 ? totals_[i - 1] : 0) + extent(terms_[i]);
    }
    steps_left_ = kMaxSteps;
    return reach(kept, low, high);
  }

 private:
  static constexpr int kMaxSteps = 100'000;

  [[nodiscard]] static Wide extent(const Term& term) { return Wide{term.step} * term.count; }

  /// Of the `count` smallest terms.
  [[nodiscard]] bool reach(std::size_t count, Wide low, Wide high) {
    if (low <= 0) return high >= 0;  // 0 is a sum
    if (count == 0 || low > totals_[count - 1]) return false;
    if (high >= totals_[count - 1] || --steps_left_ < 0) return true;
    const Wide divisor = divisors_[count - 1];
    if ((low + divisor - 1) / divisor * divisor > high) return false;
    if (count == 1) return true;
    const Term& largest = terms_[count - 1];
    const Wide step = largest.step, rest = totals_[count - 2];
    const Wide least = low > rest ? (low - rest + step - 1) / step : 0;
    for (Wide n = std::min(largest.count, high / step); n >= least; --n) {
      if (reach(count - 1, low - n * step, high - n * step)) return true;
    }
    return false;
  }

  Terms<std::size_t{2} * kMaxRank> given_;
  std::array<Term, std::size_t{2} * kMaxRank> terms_{};              // those that count, steps strictly ascending
  std::array<std::uint64_t, std::size_t{2} * kMaxRank> divisors_{};  // of all terms up to this one
  std::array<Wide, std::size_t{2} * kMaxRank> totals_{};
  int steps_left_ = 0;
};

std::uint64_t step_of(const TensorView& view, std::size_t axis) {
  const auto stride = static_cast<std::uint64_t>(view.strides[axis]);
  return (view.strides[axis] < 0 ? 0 - stride : stride) * size_of(view.dtype);
}

/// The addresses from a tensor's first byte to past its last one; equal where it has no elements.
struct Range {
  std::uint64_t begin, end;  // no defaults: arrays of ranges are filled as far as they are used
  [[nodiscard]] bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

Range range_of(const TensorView& view);
/// Apart from the others, since every run asks for theirs.
[[gnu::noinline]] Range range_of_packed(const TensorView& view) { return range_of(bytes_of(view)); }

Range range_of(const TensorView& view) {
  if (!view.defined()) return {};
  if (is_packed(view.dtype)) return range_of_packed(view);
  std::uint64_t low = 0, high = 1;  // in elements; unsigned, since the strides of an empty tensor may be anything
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
    if (view.shape[axis] == 0) return {};
    (view.strides[axis] < 0 ? low : high) +=
        static_cast<std::uint64_t>(view.shape[axis] - 1) * static_cast<std::uint64_t>(view.strides[axis]);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  const std::uint64_t size = size_of(view.dtype);
  return {address + low * size, address + high * size};
}

[[noreturn, gnu::cold, gnu::noinline]] void refuse(const NamedTensor& output, const NamedTensor& other) {
  const auto from = reinterpret_cast<std::intptr_t>(other.view->data);
  invalid_argument(output.name, ": must not overlap ", other.name, " in memory (got ", describe(*output.view),
                   " that starts ", reinterpret_cast<std::intptr_t>(output.view->data) - from, " bytes from ",
                   describe(*other.view), ")");
}

void check_pair(const NamedTensor& output, const Range& range, const NamedTensor& other, const Range& other_range) {
  if (range.meets(other_range) && share_memory(*output.view, *other.view)) refuse(output, other);
}

/// Compares each output with all tensors before it: quick for few.
void check_few(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs) {
  std::array<Range, kMostTensors> ranges;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    ranges[i] = range_of(*outputs[i].view);
    for (std::size_t other = 0; other < i; ++other) check_pair(outputs[other], ranges[other], outputs[i], ranges[i]);
  }
  for (const NamedTensor& input : inputs) {
    const Range range = range_of(*input.view);
    for (std::size_t i = 0; i < outputs.size(); ++i) check_pair(outputs[i], ranges[i], input, range);
  }
}

/// In the order of addresses, so that only neighbours are compared.
void check_many(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs) {
  struct Placed {
    Range range;
    const NamedTensor* tensor;
    bool written;
    std::size_t position;  // among the tensors handed in: equal addresses keep their order
  };
  std::vector<Placed> placed;
  placed.reserve(outputs.size() + inputs.size());
  for (const NamedTensor& output : outputs) placed.push_back({range_of(*output.view), &output, true, placed.size()});
  for (const NamedTensor& input : inputs) placed.push_back({range_of(*input.view), &input, false, placed.size()});
  std::erase_if(placed, [](const Placed& p) { return p.range.begin == p.range.end; });
  std::ranges::sort(placed, {}, [](const Placed& p) { return std::pair(p.range.begin, p.position); });
  std::vector<const Placed*> open;  // ranges that have begun and not ended
  for (const Placed& next : placed) {
    std::erase_if(open, [&next](const Placed* p) { return p->range.end <= next.range.begin; });
    for (const Placed* before : open) {
      if (before->written) check_pair(*before->tensor, before->range, *next.tensor, next.range);
      if (next.written && !before->written) check_pair(*next.tensor, next.range, *before->tensor, before->range);
    }
    open.push_back(&next);
  }
}

}  // namespace

bool share_memory(const TensorView& a, const TensorView& b) {
  // Who writes half a byte writes the other half too.
  if (is_packed(a.dtype)) return share_memory(bytes_of(a), b);
  if (is_packed(b.dtype)) return share_memory(a, bytes_of(b));
  const Range range_a = range_of(a), range_b = range_of(b);
  if (!range_a.meets(range_b)) return false;
  Sums sums;
  Wide reach_b = 0;  // b's sums are counted from its end down, which turns a difference into a sum
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(a.rank); ++axis)
    sums.add(step_of(a, axis), a.shape[axis] - 1);
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(b.rank); ++axis) {
    sums.add(step_of(b, axis), b.shape[axis] - 1);
    reach_b += Wide{step_of(b, axis)} * (b.shape[axis] - 1);
  }
  const Wide distance = Wide{range_b.begin} - Wide{range_a.begin} + reach_b;
  return sums.reach(distance - Wide{size_of(a.dtype)} + 1, distance + Wide{size_of(b.dtype)} - 1);
}

bool overlaps_itself(const TensorView& view) {
  if (is_packed(view.dtype)) return overlaps_itself(bytes_of(view));
  if (view.numel() == 0) return false;
  Terms<kMaxRank> given;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
    if (view.shape[axis] > 1) given.add(step_of(view, axis), view.shape[axis] - 1);
  }
  const auto& axes = given.terms;
  const Wide size = size_of(view.dtype);
  Wide reach = 0;  // of the axes before this one
  for (std::size_t last = 0; last < given.size; ++last) {
    const Wide step = axes[last].step;
    if (step < reach + size) {
      // Two elements n >= 1 steps apart along this axis, and any way apart along those before it.
      if (step == 0) return true;
      Sums sums;
      sums.add(axes[last].step, axes[last].count - 1);
      for (std::size_t i = 0; i < last; ++i) sums.add(axes[i].step, 2 * axes[i].count);
      if (sums.reach(reach - step - size + 1, reach - step + size - 1)) return true;
    }
    reach += step * axes[last].count;
  }
  return false;
}

void check_apart(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs) {
  if (outputs.size() <= kMostTensors && inputs.size() <= 2 * kMostTensors) return check_few(outputs, inputs);
  check_many(outputs, inputs);
}

}  // namespace tilewise::core
