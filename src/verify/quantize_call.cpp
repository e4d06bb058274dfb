// What the inputs of quantize and dequantize hold.
#include "verify/quantize_call.hpp"

#include <cmath>
#include <string_view>
#include <vector>

namespace tilewise::verify {

QuantizeCall::QuantizeCall(const QuantizeProblem& problem, std::uint64_t seed, Values values)
    : SchemaCall(problem, seed), special_rng_(seed + 0x9A271u) {
  for (const TensorView& x : input("x")) draw_numbers(x, values);
  for (const TensorView& elements : input("elements")) draw_elements(elements);
  for (const TensorView& scales : input("scales")) draw_scales(scales, values);
  for (const TensorView& global : input("global_scale")) draw_scales(global, values);
  if (values == Values::special) plant_special_values();
  seal();
}

/// Stretches of a row have magnitudes of their own, so that neighbouring blocks differ. Some are 0, others between two
/// elements.
void QuantizeCall::draw_numbers(const TensorView& x, Values values) {
  const bool large = values == Values::large, narrow = x.dtype == DType::f16;
  const double least = narrow ? -24.0 : large ? -149.0 : -30.0, most = narrow ? 15.0 : large ? 127.0 : 30.0;
  double size = 1.0;
  bool quarters = false;
  for_each_element(x, [&](std::span<const std::int64_t> position, std::int64_t offset) {
    if (position.back() == 0 || rng().chance(0.03)) {
      // Quarters of a power of two are ties, where a scale is one too.
      quarters = rng().chance(0.2);
      const double exponent = rng().uniform(least, most - 3.0);
      size = rng().chance(0.1) ? 0.0 : std::exp2(quarters ? std::floor(exponent) : exponent);
    }
    const double number = quarters ? 0.25 * static_cast<double>(rng().integer(-24, 24)) : rng().normal();
    store_at(x, offset, rng().chance(0.05) ? 0.0 : size * number);
  });
}

void QuantizeCall::draw_elements(const TensorView& elements) {
  for_each_element(elements, [&](std::span<const std::int64_t>, std::int64_t offset) {
    store_at(elements, offset, std::exp2(rng().uniform(-10.0, 9.0)) * (rng().chance(0.5) ? 1.0 : -1.0));
  });
}

void QuantizeCall::draw_scales(const TensorView& scales, Values values) {
  const double size = values == Values::large ? 150.0 : 20.0;
  for_each_element(scales, [&](std::span<const std::int64_t>, std::int64_t offset) {
    store_at(scales, offset, std::exp2(rng().uniform(-size, size < 128.0 ? size : 127.0)));
  });
}

/// NaN, infinities, zeros with a sign and the least numbers, several of them anywhere.
void QuantizeCall::plant_special_values() {
  std::vector<TensorView> places;
  for (const std::vector<TensorView>& views : all_inputs())
    for (const TensorView& view : views)
      if (view.numel() > 0 && view.dtype != DType::fp4_e2m1) places.push_back(view);
  const std::int64_t count = places.empty() ? 0 : special_rng_.integer(1, 6);
  for (std::int64_t n = 0; n < count; ++n) {
    const TensorView& view =
        places[static_cast<std::size_t>(special_rng_.integer(0, static_cast<std::int64_t>(places.size()) - 1))];
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis)
      offset += special_rng_.integer(0, view.shape[axis] - 1) * view.strides[axis];
    const bool plain = special_rng_.chance(0.3);
    store_at(view, offset,
             plain ? special_rng_.pick({-0.0, 0x1p-149, -0x1p-24, 0x1p-126}) : special_value(special_rng_));
  }
}

std::vector<Output> QuantizeCall::make_outputs(std::uint64_t seed) const {
  std::vector<Output> outputs = SchemaCall::make_outputs(seed);
  for (Output& output : outputs) output.model = Model::bits;
  return outputs;
}

std::vector<ErrorBounds> QuantizeCall::bounds(const std::vector<Output>& expected, double /*tanh_error*/) const {
  std::vector<ErrorBounds> none;
  for (const Output& output : expected) none.push_back({output.name, {}, {}, {}});
  return none;
}

}  // namespace tilewise::verify
