// What a quantize problem may be, its normal form, what it asks of implementations, and the memory that it moves.
#include "operations/quantize/rules.hpp"

#include "core/message.hpp"
#include "operations/block_formats.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/quantize/features.hpp"
#include "operations/quantize/schema.hpp"

namespace tilewise::operations::quantize {
namespace {

using core::invalid_argument, core::invalid_type;

/// Whether there is a choice between the scales of the rules and powers of two.
bool takes_powers_of_two(const BlockFormat& format) {
  return format.element == DType::fp8_e4m3 && (format.scale == DType::f32 || format.block_columns == kLargeBlock);
}

}  // namespace

void validate_format(const QuantizeProblem& p) {
  if (is_known(p.format) && p.format.defined()) return;
  invalid_argument(
      "format: must be fp8_tensor, fp8_row, fp8_1x128, fp8_128x128, the last two with _e8m0, mxfp8, mxfp4 or nvfp4 "
      "(got ",
      to_string(p.format), ")");
}

void validate(const QuantizeProblem& p) {
  validate_format(p);
  const bool forward = p.pass == QuantizePass::quantize;
  if (p.dtype != DType::f32 && p.dtype != DType::bf16 && p.dtype != DType::f16) {
    invalid_type(forward ? "x" : "out", ": dtype must be f32, bf16 or f16 (got ", to_string(p.dtype), ")");
  }
  if (p.power_of_two && !forward) invalid_argument("power_of_two: belongs to quantize (got it in dequantize)");
  if (p.power_of_two && !takes_powers_of_two(p.format)) {
    invalid_argument("power_of_two: must be false with format=", to_string(p.format),
                     ", which has one rule for its scales (got true)");
  }
  if (!p.stacked && p.num_experts != 1)
    invalid_argument("num_experts: must be 1 without stacked (got ", p.num_experts, ")");
  schema::check_sizes<kSchema>(p);
}

double bytes_moved(const QuantizeProblem& p) {
  const auto bytes = [](DType dtype) { return static_cast<double>(bits_of(dtype)) / 8.0; };
  const double rows = static_cast<double>(p.num_experts) * static_cast<double>(p.rows);
  const double numbers = rows * static_cast<double>(p.columns);
  const double blocks = static_cast<double>(blocks_of(p.rows, p.format.block_rows)) *
                        static_cast<double>(blocks_of(p.columns, p.format.block_columns));
  // What a whole tensor has in common is found by reading it once more.
  const bool twice = p.pass == QuantizePass::quantize && (p.format.global || p.format.block_rows == BlockFormat::kAll);
  return numbers * ((twice ? 2.0 : 1.0) * bytes(p.dtype) + bytes(p.format.element)) +
         static_cast<double>(p.num_experts) * blocks * bytes(p.format.scale);
}

QuantizeProblem canonical(QuantizeProblem p) {
  if (p.device == DeviceType::cpu) p.unaligned = false;
  return p;
}

FeatureSet required_features(const QuantizeProblem& p) {
  // Every field by name: a new one does not compile until somebody has decided here what it asks for.
  [[maybe_unused]] const auto& [pass, dtype, device, format, power_of_two, stacked, num_experts, rows, columns,
                                unaligned] = p;
  FeatureSet set{pass == QuantizePass::quantize ? Feature::quantize : Feature::dequantize, feature_of(dtype)};
  insert_format(set, format);
  if (power_of_two) set.insert(Feature::power_of_two);
  if (stacked) set.insert(Feature::stacked);
  return set;
}

}  // namespace tilewise::operations::quantize
