// The arithmetic of matrix instructions and matrix loads on the registers of a whole wave.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "device/tile/host_entry.h"

namespace tilewise::backends::emulation {

/// One lane's part of a matrix instruction.
struct MultiplyArguments {
  device::HostMatrix matrix;
  std::int32_t element;
  float* d;
  const std::uint32_t *a, *b;
};

/// d += a * b over the lanes of a wave: exact products, added in fp32 in order of k. Empty, or what is
/// wrong with the operands (lanes of a WMMA that fail to repeat one another, lanes that disagree on the element).
[[nodiscard]] std::string multiply(std::span<const MultiplyArguments* const> lanes);

/// Row r of matrix m (8 elements of 16 bits) is rows[8 * m + r]; to[lane] gets 4 registers.
void distribute_matrices(const std::uint16_t (&rows)[32][8], bool transposed, std::span<std::uint32_t* const> to);

}  // namespace tilewise::backends::emulation
