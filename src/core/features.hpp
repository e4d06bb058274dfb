// The feature-set rule: an implementation declares what it honours, the framework checks
// required(problem) ⊆ supported. A new option is a new bit, so old kernels refuse it.
// What a bit means is its operation's to say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace tilewise::core {

/// Features of an operation that the framework does not know, one bit each.
using FeatureBits = std::uint64_t;

/// A set of an operation's features, small enough to pass by value. `Feature` ends with count_.
template <typename Feature>
class FeatureSetOf {
 public:
  constexpr FeatureSetOf() = default;
  constexpr FeatureSetOf(std::initializer_list<Feature> features) {
    for (const Feature f : features) bits_ |= bit(f);
  }
  /// Every feature there is: for drawing problems and for tests. No implementation declares it.
  [[nodiscard]] static constexpr FeatureSetOf all() { return from_bits(bit(Feature::count_) - 1); }
  [[nodiscard]] static constexpr FeatureSetOf from_bits(FeatureBits bits) {
    FeatureSetOf set;
    set.bits_ = bits;
    return set;
  }
  [[nodiscard]] constexpr FeatureBits bits() const { return bits_; }
  constexpr void insert(Feature f) { bits_ |= bit(f); }
  [[nodiscard]] constexpr bool contains(Feature f) const { return (bits_ & bit(f)) != 0; }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  [[nodiscard]] constexpr FeatureSetOf minus(FeatureSetOf other) const { return from_bits(bits_ & ~other.bits_); }
  friend constexpr bool operator==(FeatureSetOf, FeatureSetOf) = default;

 private:
  static_assert(static_cast<unsigned>(Feature::count_) < 64);
  [[nodiscard]] static constexpr FeatureBits bit(Feature f) { return FeatureBits{1} << static_cast<unsigned>(f); }
  FeatureBits bits_ = 0;
};

/// "window_left, softcap": the names of the bits that are set, for refusal reasons.
[[nodiscard]] inline std::string features_text(FeatureBits bits, std::span<const std::string_view> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if ((bits >> i & 1) == 0) continue;
    if (!text.empty()) text += ", ";
    text += names[i];
  }
  return text;
}

}  // namespace tilewise::core
