// One token at one expert as bounds see it: what every intermediate number is, and how far off it may be.
#pragma once

#include <cstdint>
#include <vector>

#include "operations/moe/params.hpp"
#include "tilewise/moe.hpp"
#include "verify/estimate.hpp"

namespace tilewise::verify {

/// The inputs of a call in double, scales applied.
struct MoeNumbers {
  static constexpr std::int64_t kNobody = -1;

  explicit MoeNumbers(const operations::moe::MoeParams& p);

  std::int64_t tokens, hidden, intermediate, rows, num_experts, top_k;  ///< rows: of gate_up
  bool gated;
  std::vector<double> x, weights, dout;  ///< [tokens, ..]
  std::vector<std::int64_t> experts;     ///< [tokens, top_k], counted from 0; kNobody
  std::vector<double> gate_up, down, gate_up_bias, down_bias, norm;
  std::vector<std::int64_t> saved_rows;  ///< of gate_up_out by pair, where the call has it
  std::vector<double> saved;             ///< [tokens * top_k, rows] of gate_up_out, where the call reads it

  [[nodiscard]] std::int64_t gate_row(std::int64_t i) const { return interleaved ? 2 * i : i; }
  [[nodiscard]] std::int64_t up_row(std::int64_t i) const {
    return !gated ? i : interleaved ? 2 * i + 1 : intermediate + i;
  }
  [[nodiscard]] const double* gate_up_row(std::int64_t expert, std::int64_t row) const {
    return gate_up.data() + (expert * rows + row) * hidden;
  }
  [[nodiscard]] const double* down_row(std::int64_t expert, std::int64_t n) const {
    return down.data() + (expert * hidden + n) * intermediate;
  }

  /// Where gate_up_out has the sum of a row of gate_up.
  [[nodiscard]] std::int64_t saved_column(std::int64_t row) const {
    return interleaved ? row / 2 + row % 2 * intermediate : row;
  }

 private:
  bool interleaved;
};

/// What a kernel of a problem rounds to.
struct MoePrecision {
  explicit MoePrecision(const MoeProblem& problem);

  double u, tiny;            ///< of sums
  double r, tiny_row;        ///< of values in the dtype of rows: 0 where that is what sums are in
  double x_sums, h_sums;     ///< u of sums of products, more where both factors are fp8
  double block, tiny_block;  ///< of intermediate values in their format, the latter of a block's scale; 0: none
};

struct MoePart {
  double input_weight = 1.0, output_weight = 1.0;
  std::vector<Estimate> sums;            ///< of rows of gate_up, before weight and bias
  std::vector<Estimate> h;               ///< as the second product takes it
  std::vector<Estimate> by_gate, by_up;  ///< derivatives
  std::vector<Estimate> z;               ///< down h + bias, normalised
  std::vector<double> z_magnitude;       ///< of the terms of that product
};

[[nodiscard]] MoePart part_of(const MoeNumbers& numbers, const operations::moe::MoeParams& p,
                              const MoePrecision& precision, std::int64_t token, std::int64_t j, std::int64_t expert);

}  // namespace tilewise::verify
