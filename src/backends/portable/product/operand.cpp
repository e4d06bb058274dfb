// See operand.hpp.
#include "backends/portable/product/operand.hpp"

#include <cstdint>

namespace tilewise::backends::portable {
namespace {

using operations::BlockScales, operations::ExpertMatrices, operations::Matrix;

std::int64_t bytes_of(DType dtype, std::int64_t elements) {
  return elements * static_cast<std::int64_t>(bits_of(dtype)) / 8;
}

bool starts_on_16_bytes(const void* data, DType dtype, std::int64_t lines, std::int64_t stride, std::int64_t experts,
                        std::int64_t expert_stride) {
  if (data == nullptr) return true;
  const auto bits = static_cast<std::int64_t>(bits_of(dtype));
  const auto fine = [bits](std::int64_t count, std::int64_t step) { return count <= 1 || step * bits % 128 == 0; };
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && fine(lines, stride) && fine(experts, expert_stride);
}

void bind_scales(const BlockScales& scales, bool back, device::ProductScales& to) {
  if (to.rows == 0) return;
  to.data = scales.data;
  to.expert_stride = scales.expert_stride;
  to.row_stride = back ? scales.column_stride : scales.row_stride;
  to.depth_stride = back ? scales.row_stride : scales.column_stride;
}

}  // namespace

bool starts_on_16_bytes(const Matrix& m) { return starts_on_16_bytes(m.data, m.dtype, m.rows, m.row_stride, 1, 0); }

bool starts_on_16_bytes(const ExpertMatrices& m) {
  const bool transposed = m.column_stride != 1;
  return starts_on_16_bytes(m.data, m.dtype, transposed ? m.columns : m.rows,
                            transposed ? m.column_stride : m.row_stride, m.num_experts, m.expert_stride);
}

void bind_lines(const Matrix& rows, device::ProductOperand& to) {
  to.data = rows.data;
  to.line_stride = bytes_of(rows.dtype, rows.row_stride);
}

void bind_rows(const Matrix& rows, const BlockScales& scales, device::ProductOperand& to) {
  bind_lines(rows, to);
  bind_scales(scales, false, to.scales);
}

void bind_weights(const ExpertMatrices& weights, bool back, device::ProductOperand& to) {
  to.data = weights.data;
  to.expert_stride = bytes_of(weights.dtype, weights.expert_stride);
  to.line_stride = bytes_of(weights.dtype, weights.column_stride == 1 ? weights.row_stride : weights.column_stride);
  bind_scales(weights.scales, back, to.scales);
}

}  // namespace tilewise::backends::portable
