// The tensors of one call of quantize or dequantize, drawn from a seed for a problem: magnitudes far apart, and all
// that elements and scales can be. Every output is the reference's, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "operations/quantize/quantize.hpp"
#include "verify/schema_call.hpp"

namespace tilewise::verify {

class QuantizeCall final : public SchemaCall<operations::Quantize> {
 public:
  QuantizeCall(const QuantizeProblem& problem, std::uint64_t seed, Values values);
  [[nodiscard]] std::vector<Output> make_outputs(std::uint64_t seed) const override;
  [[nodiscard]] std::vector<ErrorBounds> bounds(const std::vector<Output>& expected,
                                                double /*tanh_error*/) const override;

 private:
  void draw_numbers(const TensorView& x, Values values);
  void draw_elements(const TensorView& elements);
  void draw_scales(const TensorView& scales, Values values);
  void plant_special_values();

  Random special_rng_;  ///< of its own, so that all else is as without special values
};

}  // namespace tilewise::verify
