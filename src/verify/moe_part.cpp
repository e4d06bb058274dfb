// Errors of one token at one expert, evaluated in double along the reference's own formulas.
#include "verify/moe_part.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "backends/reference/activation_math.hpp"
#include "backends/reference/matrix_access.hpp"
#include "backends/reference/moe/reference_moe.hpp"
#include "core/ceil_div.hpp"
#include "verify/rounding.hpp"

namespace tilewise::verify {
namespace {

using backends::reference::clamped, backends::reference::gated, backends::reference::Gated, backends::reference::load,
    backends::reference::Slope;
using operations::moe::MoeParams;

/// Of a function's argument and value; and of what 16-bit rows make of an exponential, as a part of their rounding.
constexpr double kRoundings = 16.0, kCoarse = 0.02;
/// Hopper's matrix unit keeps 13 bits below the greatest of the 32 products in fp8 that it adds at once.
constexpr double kFp8Sums = 0x1p-13;

/// gate is not looked at without one.
Gated<double> activated(const MoeParams& p, double gate, double up) {
  if (p.gate_layout != device::GateLayout::none) return gated(p.activation, gate, up);
  const Slope<double> active = clamped(p.activation, up);
  return {active.value, 0.0, active.derivative};
}

/// What an activation is around what it is given.
struct Around {
  Gated<double> at;
  double by_gate, by_up;          ///< the steepest
  double gate_change, up_change;  ///< and how far derivatives are from those at the middle
};

Around around(const MoeParams& p, const Estimate& gate, const Estimate& up) {
  const Gated<double> at = activated(p, gate.value, up.value);
  Around result{at, std::abs(at.by_gate), std::abs(at.by_up), 0.0, 0.0};
  for (const double g : {gate.value - gate.limit, gate.value + gate.limit}) {
    for (const double u : {up.value - up.limit, up.value + up.limit}) {
      const Gated<double> corner = activated(p, g, u);
      result.by_gate = std::max(result.by_gate, std::abs(corner.by_gate));
      result.by_up = std::max(result.by_up, std::abs(corner.by_up));
      result.gate_change = std::max(result.gate_change, std::abs(corner.by_gate - at.by_gate));
      result.up_change = std::max(result.up_change, std::abs(corner.by_up - at.by_up));
    }
  }
  return result;
}

/// Beside a number that is none there is no error: what a clamp or an activation makes of an infinity is exact.
double finite(double error) { return std::isfinite(error) ? std::abs(error) : 0.0; }

/// The part as it is made, stage by stage.
class Maker {
 public:
  Maker(const MoeNumbers& numbers, const MoeParams& p, const MoePrecision& precision, std::int64_t token,
        std::int64_t j, std::int64_t expert)
      : numbers_(numbers),
        p_(p),
        precision_(precision),
        token_(token),
        pair_(token * numbers.top_k + j),
        expert_(expert) {
    (p.weight_on_input ? part_.input_weight : part_.output_weight) = numbers.weights[static_cast<std::size_t>(pair_)];
  }

  MoePart run() && {
    for (std::int64_t row = 0; row < numbers_.rows; ++row) part_.sums.push_back(sum(row));
    for (std::int64_t i = 0; i < numbers_.intermediate; ++i) activate(i);
    if (p_.h_format.defined())
      quantise();
    else
      for (Estimate& h : part_.h) h = h.rounded(precision_.r, precision_.tiny_row);
    for (std::int64_t n = 0; n < numbers_.hidden; ++n) multiply(n);
    if (p_.norm_weight.data != nullptr) normalise();
    return std::move(part_);
  }

 private:
  /// What was saved is what it is.
  [[nodiscard]] Estimate sum(std::int64_t row) const {
    if (!numbers_.saved.empty()) {
      const std::int64_t saved = numbers_.saved_rows[static_cast<std::size_t>(pair_)];
      return {numbers_.saved[static_cast<std::size_t>(saved * numbers_.rows + numbers_.saved_column(row))]};
    }
    const double* x = numbers_.x.data() + token_ * numbers_.hidden;
    const double* w = numbers_.gate_up_row(expert_, row);
    SumOfEstimates sum;
    for (std::int64_t k = 0; k < numbers_.hidden; ++k) sum.add({x[k] * w[k]});
    return sum.rounded(precision_.x_sums, precision_.tiny);
  }
  [[nodiscard]] Estimate activated_sum(std::int64_t row) const {
    SumOfEstimates whole;
    whole.add(part_.sums[static_cast<std::size_t>(row)], part_.input_weight);
    if (!numbers_.gate_up_bias.empty())
      whole.add({numbers_.gate_up_bias[static_cast<std::size_t>(expert_ * numbers_.rows + row)]});
    return whole.rounded(precision_.u, precision_.tiny);
  }

  void activate(std::int64_t i) {
    const double u = precision_.u, coarse = kCoarse * precision_.r;
    const Estimate up = activated_sum(numbers_.up_row(i)),
                   gate = numbers_.gated ? activated_sum(numbers_.gate_row(i)) : Estimate{};
    const Around f = around(p_, gate, up);
    const double arguments = finite(gate.value * f.at.by_gate) + finite(up.value * f.at.by_up);
    const double own =
        kRoundings * u * (std::abs(f.at.value) + arguments) + coarse * std::abs(f.at.value) + precision_.tiny;
    part_.h.push_back({f.at.value, finite(f.by_gate * gate.limit) + finite(f.by_up * up.limit) + own,
                       std::hypot(finite(f.by_gate * gate.sigma), finite(f.by_up * up.sigma), 0.5 * own)});
    const auto derivative = [&](double value, double change, double factor) {
      const double limit = change + (kRoundings * u + coarse) * (std::abs(value) + factor) + precision_.tiny;
      return Estimate{value, limit, 0.5 * limit};
    };
    part_.by_gate.push_back(derivative(f.at.by_gate, f.gate_change, 1.0 + std::abs(up.value)));
    part_.by_up.push_back(derivative(f.at.by_up, f.up_change, 1.0 + std::abs(f.at.by_gate)));
  }

  /// The reference's own values are quantised too: both may be off by half a step, and a scale may differ by a step.
  void quantise() {
    const std::int64_t size = numbers_.intermediate;
    const std::int64_t columns = p_.h_format.block_columns == BlockFormat::kAll ? size : p_.h_format.block_columns;
    for (std::int64_t first = 0; first < size; first += columns) {
      const std::int64_t end = std::min(first + columns, size);
      double largest = 0.0;
      for (std::int64_t i = first; i < end; ++i)
        largest = std::max(largest, std::abs(part_.h[static_cast<std::size_t>(i)].value));
      for (std::int64_t i = first; i < end; ++i) {
        Estimate& h = part_.h[static_cast<std::size_t>(i)];
        h = h.rounded(precision_.block, precision_.tiny_block * largest);
      }
    }
  }

  void multiply(std::int64_t n) {
    const double* w = numbers_.down_row(expert_, n);
    SumOfEstimates sum;
    for (std::int64_t i = 0; i < numbers_.intermediate; ++i) sum.add(part_.h[static_cast<std::size_t>(i)], w[i]);
    if (!numbers_.down_bias.empty())
      sum.add({numbers_.down_bias[static_cast<std::size_t>(expert_ * numbers_.hidden + n)]});
    part_.z.push_back(sum.rounded(precision_.h_sums, precision_.tiny));
    part_.z_magnitude.push_back(sum.magnitude());
  }

  void normalise() {
    double squares = 0.0, off = 0.0, spread = 0.0;
    for (const Estimate& z : part_.z) {
      squares += z.value * z.value;
      off += std::abs(z.value) * z.limit + z.limit * z.limit;
      spread += z.value * z.sigma * z.value * z.sigma;
    }
    const double count = static_cast<double>(part_.z.size());
    const double mean = squares / count + p_.norm_epsilon, root = std::sqrt(mean);
    const double rounding = precision_.u * (4.0 * std::sqrt(count) + kRoundings);
    for (std::size_t n = 0; n < part_.z.size(); ++n) {
      const Estimate& z = part_.z[n];
      const double factor = numbers_.norm[static_cast<std::size_t>(expert_ * numbers_.hidden) + n] / root;
      if (!std::isfinite(root)) {  // an infinity among them: what is finite becomes 0, exactly
        part_.z[n] = z.times(factor);
        continue;
      }
      const double limit = off / count / mean + rounding,
                   sigma = std::hypot(std::sqrt(spread) / count / mean, rounding);
      part_.z[n] = product(z, {factor, std::abs(factor) * limit, std::abs(factor) * sigma});
    }
  }

  const MoeNumbers& numbers_;
  const MoeParams& p_;
  const MoePrecision& precision_;
  std::int64_t token_, pair_, expert_;
  MoePart part_;
};

}  // namespace

MoeNumbers::MoeNumbers(const MoeParams& p)
    : tokens(p.x.rows),
      hidden(p.x.columns),
      intermediate(p.down.columns),
      rows(p.gate_up.rows),
      num_experts(p.gate_up.num_experts),
      top_k(p.topk_ids.columns),
      gated(p.gate_layout != device::GateLayout::none),
      interleaved(p.gate_layout == device::GateLayout::interleaved) {
  for (std::int64_t i = 0; i < tokens * hidden; ++i) {
    x.push_back(load(p.x, p.x_scales, i / hidden, i % hidden));
    if (p.dout.data != nullptr) dout.push_back(load(p.dout, i / hidden, i % hidden));
  }
  for (std::int64_t i = 0; i < tokens * top_k; ++i) {
    const std::int64_t t = i / top_k, j = i % top_k;
    const std::int64_t id = operations::load_integer(p.topk_ids.dtype, p.topk_ids.data,
                                                     t * p.topk_ids.row_stride + j * p.topk_ids.column_stride);
    const bool here = id >= p.first_expert && id - p.first_expert < num_experts;
    experts.push_back(here ? id - p.first_expert : kNobody);
    weights.push_back(load(p.topk_weights, t, j));
  }
  const auto read_matrices = [](const operations::ExpertMatrices& from, std::vector<double>& to) {
    for (std::int64_t i = 0; i < from.num_experts * from.rows; ++i)
      for (std::int64_t c = 0; c < from.columns; ++c) to.push_back(load(from, i / from.rows, i % from.rows, c));
  };
  const auto read_vectors = [this](const operations::ExpertVectors& from, std::vector<double>& to) {
    for (std::int64_t i = 0; from.data != nullptr && i < num_experts * from.size; ++i)
      to.push_back(load(from, i / from.size, i % from.size));
  };
  read_matrices(p.gate_up, gate_up);
  read_matrices(p.down, down);
  read_vectors(p.gate_up_bias, gate_up_bias);
  read_vectors(p.down_bias, down_bias);
  read_vectors(p.norm_weight, norm);
  if (p.gate_up_out.data == nullptr) return;
  saved_rows = backends::reference::saved_rows(p);
  for (std::int64_t i = 0; p.dout.data != nullptr && i < p.gate_up_out.rows * rows; ++i)
    saved.push_back(load(p.gate_up_out, i / rows, i % rows));
}

MoePrecision::MoePrecision(const MoeProblem& problem) {
  const DType sums = problem.dtype == DType::f64 ? DType::f64 : DType::f32;
  const DType rows = problem.x_format.defined() ? DType::bf16 : problem.dtype;
  const bool narrow = rows == DType::bf16 || rows == DType::f16;
  u = unit_roundoff(sums);
  tiny = smallest_rounding(sums);
  r = narrow ? unit_roundoff(rows) : 0.0;
  tiny_row = narrow ? smallest_rounding(rows) : 0.0;
  x_sums = problem.x_format.defined() ? kFp8Sums : u;
  h_sums = problem.h_format.defined() ? kFp8Sums : u;
  // A scale of f32 is off by roundings; one that is a power of two may be the next one, by which an element is
  // saturated by an eighth, and its steps are twice as wide.
  const bool power = problem.h_format.scale == DType::fp8_e8m0;
  const double steps = power ? 4.0 : 2.0;
  block = problem.h_format.defined() ? steps * unit_roundoff(DType::fp8_e4m3) + (power ? 0.125 : 0.0) : 0.0;
  tiny_block = problem.h_format.defined()
                   ? steps * smallest_rounding(DType::fp8_e4m3) * (power ? 2.0 : 1.0) / largest_finite(DType::fp8_e4m3)
                   : 0.0;
}

MoePart part_of(const MoeNumbers& numbers, const MoeParams& p, const MoePrecision& precision, std::int64_t token,
                std::int64_t j, std::int64_t expert) {
  return Maker(numbers, p, precision, token, j, expert).run();
}

}  // namespace tilewise::verify
