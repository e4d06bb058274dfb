// Configs of products as every operation that multiplies makes them: what formats ask of operands, and shapes of tiles.
// Pure functions of what they are told and the device.
#pragma once

#include <cstdint>

#include "backends/portable/traits.hpp"
#include "device/product/config.h"
#include "operations/elements.hpp"
#include "tilewise/block_format.hpp"

namespace tilewise::backends::portable {

/// ProductType of an element type.
[[nodiscard]] std::int32_t product_type_of(DType dtype);
/// BiasType of a dtype that GPUs have.
[[nodiscard]] std::int32_t bias_type_of(DType dtype);
/// The same of a vector that may not be given, by the enum that a problem says its dtype with.
template <typename Vector>
[[nodiscard]] std::int32_t bias_type_of(Vector vector) {
  return bias_type_of(operations::dtype_of_vector(vector));
}
/// Elements that are multiplied where rows are of that type.
[[nodiscard]] std::int32_t product_element_of(DType dtype);

/// Whether a scale is that of whole sums.
[[nodiscard]] inline bool is_end(const BlockFormat& format) { return format.block_columns == BlockFormat::kAll; }
/// How scales of blocks along the depth are applied; those of whole sums are not the product's.
void set_scales(device::OperandConfig& operand, const BlockFormat& format, std::int32_t element);
/// The same of weights whose columns are the operand's rows: all are applied as elements are widened.
void set_scales_back(device::OperandConfig& operand, const BlockFormat& format);
/// Whether lines start on 16 bytes and are whole runs.
[[nodiscard]] std::int32_t has_vectors(const device::OperandConfig& operand, bool unaligned, std::int64_t length);

/// fp8 times fp8 without widening, where the machine does and sums can have the scales; before tiles are set. Scales
/// that are powers of two, and e2m1, are the matrix unit's where it takes them.
void set_bytes(device::ProductConfig& config, std::int64_t depth, const DeviceTraits& traits);
/// Tiles for so many rows. Waves share the columns where rows are few.
void set_tiles(device::ProductConfig& config, std::int64_t rows, const DeviceTraits& traits);
/// Weights straight to registers, where they are as they are multiplied, or of 4 bits, and tiles of so many columns
/// fill the device.
void set_direct(device::ProductConfig& config, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                bool batch_invariant, const DeviceTraits& traits);
/// Weights straight to registers, by all waves of a block in turns along the depth, where rows are few: NVIDIA's alone.
void set_streamed(device::ProductConfig& config, std::int64_t rows, std::int64_t depth, const DeviceTraits& traits);
/// More tiles on their way where rows are copied beside the lanes and there is room for two blocks.
void set_stages(device::ProductConfig& config, const DeviceTraits& traits);

}  // namespace tilewise::backends::portable
