// Operands of products: what their pointers point to, and a call's tensors in them. What an operand is not told of by a
// call lies in the workspace.
#pragma once

#include <cstddef>
#include <string_view>

#include "device/common/block_scale.h"
#include "device/product/config.h"
#include "device/product/params.h"
#include "gpu/parameters.hpp"
#include "operations/matrices.hpp"

namespace tilewise::backends::portable {

/// Bytes of a number of NumberType.
[[nodiscard]] constexpr std::size_t bytes_of_number(std::int32_t type) { return type == device::kNumberF32 ? 4 : 2; }

/// Whether every row that has elements starts on 16 bytes; the line of whichever dimension is contiguous.
[[nodiscard]] bool starts_on_16_bytes(const operations::Matrix& matrix);
[[nodiscard]] bool starts_on_16_bytes(const operations::ExpertMatrices& matrices);

/// An operand without scales of its own gets none: they are factors of whole sums.
void bind_lines(const operations::Matrix& rows, device::ProductOperand& to);
void bind_rows(const operations::Matrix& rows, const operations::BlockScales& scales, device::ProductOperand& to);
/// `back`: columns of weights are the operand's rows.
void bind_weights(const operations::ExpertMatrices& weights, bool back, device::ProductOperand& to);

/// What an operand or its scales are, for tables of pointers.
struct NamedRegion {
  std::string_view name;
  bool workspace = false;
};

template <typename Params>
void visit_operand(const Params& params, const device::ProductOperand& t, const NamedRegion& lines,
                   const NamedRegion& scales, const gpu::RegionVisitor& visit) {
  const int bits = device::bits_of_product_type(t.type);
  const std::int64_t bytes = bits >= 8 ? bits / 8 : 1;
  gpu::visit_pointer(params, t.data,
                     {.name = lines.name,
                      .workspace = lines.workspace,
                      .element_bytes = static_cast<std::size_t>(bytes),
                      .outer = {{{t.experts, t.expert_stride / bytes}, {t.lines, t.line_stride / bytes}}},
                      .rank = 2,
                      .row = bits >= 8 ? t.length : (t.length + 1) / 2},
                     visit);
  gpu::visit_pointer(params, t.scales.data,
                     {.name = scales.name,
                      .workspace = scales.workspace,
                      .element_bytes = t.scales.type == device::kScaleF32 ? sizeof(float) : 1,
                      .outer = {{{t.experts, t.scales.expert_stride},
                                 {t.scales.rows, t.scales.row_stride},
                                 {t.scales.depths, t.scales.depth_stride}}},
                      .rank = 3},
                     visit);
}

template <typename Params>
void visit_vector(const Params& params, const device::ProductVector& t, std::string_view name,
                  const gpu::RegionVisitor& visit) {
  gpu::visit_pointer(params, t.data,
                     {.name = name,
                      .element_bytes = bytes_of_number(t.type),
                      .outer = {{{t.experts, t.expert_stride}, {t.size, t.stride}}},
                      .rank = 2},
                     visit);
}

}  // namespace tilewise::backends::portable
