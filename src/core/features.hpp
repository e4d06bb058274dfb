// The feature-set rule: an implementation declares what it honours, the framework checks
// required(problem) ⊆ supported. A new option is a new bit, so old kernels refuse it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "tilewise/problem.hpp"

namespace tilewise::core {

enum class Feature : std::uint8_t {
  forward,
  backward,
  f32,
  bf16,
  f16,
  f64,
  gqa,           ///< num_heads_q != num_heads_k
  head_dim_v,    ///< head_dim_v != head_dim
  packed,        ///< layout thd with cu_seqlens
  window_left,   ///< window_left >= 0
  window_right,  ///< window_right >= 0, causal included
  top_left,
  scale_sign,  ///< softmax_scale <= 0
  softcap,
  bias,
  bias_boolean,
  dbias,
  alibi,
  sink,
  dsink,
  dropout,
  seed_tensor,
  seqused_q,
  seqused_k,
  leftpad_k,
  dlse,
  deterministic,
  batch_invariant,
  count_
};

/// A set of Features, small enough to pass by value.
class FeatureSet {
 public:
  constexpr FeatureSet() = default;
  constexpr FeatureSet(std::initializer_list<Feature> features) {
    for (const Feature f : features) bits_ |= bit(f);
  }
  [[nodiscard]] static constexpr FeatureSet all() {
    FeatureSet set;
    set.bits_ = bit(Feature::count_) - 1;
    return set;
  }
  constexpr void insert(Feature f) { bits_ |= bit(f); }
  [[nodiscard]] constexpr bool contains(Feature f) const { return (bits_ & bit(f)) != 0; }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  [[nodiscard]] constexpr FeatureSet minus(FeatureSet other) const {
    FeatureSet set;
    set.bits_ = bits_ & ~other.bits_;
    return set;
  }
  friend constexpr bool operator==(FeatureSet, FeatureSet) = default;

 private:
  [[nodiscard]] static constexpr std::uint64_t bit(Feature f) { return std::uint64_t{1} << static_cast<unsigned>(f); }
  std::uint64_t bits_ = 0;
};

/// What a Problem asks of an implementation: a pure function, the only copy of this rule.
[[nodiscard]] FeatureSet required_features(const Problem& problem);

/// The feature of an element type of q.
[[nodiscard]] Feature feature_of(DType dtype);

/// "window_left, softcap": for refusal reasons.
[[nodiscard]] std::string to_string(FeatureSet features);
[[nodiscard]] std::string_view to_string(Feature feature);

}  // namespace tilewise::core
