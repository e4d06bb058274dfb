// The numbers of a score's formula, see factors.hpp.
#include "operations/attention/factors.hpp"

#include <cmath>
#include <limits>

#include "core/message.hpp"
#include "operations/elements.hpp"

namespace tilewise::operations::attention {

using core::invalid_argument;

namespace {

/// The nearest number of fp32. Alone, since GCC 12 takes a vector of two such roundings for none.
[[gnu::noinline]] double round_to_f32(double value) { return static_cast<double>(static_cast<float>(value)); }

}  // namespace

void validate_factors(const AttentionProblem& p) {
  // What kernels compute in: what they read must be finite there, and a softcap must not vanish.
  const DType computed = statistics_dtype(p.dtype);
  const bool wide = computed == DType::f64;
  const double largest = wide ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  const double smallest = wide ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min();
  if (!(std::abs(p.softmax_scale) <= largest)) {
    invalid_argument("softmax_scale: must be finite in ", to_string(computed), " (got ", p.softmax_scale, ")");
  }
  if (p.softcap != 0.0 && !(p.softcap >= smallest && p.softcap <= largest)) {
    invalid_argument("softcap: must be 0 (off), or positive and finite in ", to_string(computed), " (got ", p.softcap,
                     ")");
  }
  if (!(p.dropout_p >= 0.0 && p.dropout_p < 1.0)) {
    invalid_argument("dropout_p: must be >= 0 and < 1 (got ", p.dropout_p, ")");
  }
}

device::ScoreFactors score_factors(const AttentionProblem& p) {
  const auto rounded = [&p](double value) { return p.dtype == DType::f64 ? value : round_to_f32(value); };
  return {rounded(p.softmax_scale), rounded(p.softcap), rounded(1.0 / (1.0 - p.dropout_p))};
}

void set_factors(const device::ScoreFactors& factors, device::ScoreParams& params) {
  params.softmax_scale = static_cast<float>(factors.softmax_scale);
  params.softcap = static_cast<float>(factors.softcap);
  params.dropout_scale = static_cast<float>(factors.dropout_scale);
}

}  // namespace tilewise::operations::attention
