// See schedule.hpp.
#include "backends/portable/linear/schedule.hpp"

#include <algorithm>

#include "backends/portable/product/schedule.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "formats/field.hpp"
#include "operations/activation.hpp"
#include "operations/linear/rules.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div, core::concat;
using device::LinearConfig, device::LinearDwConfig, device::OperandConfig;

std::int32_t groups_of(const LinearProblem& p) {
  return !operations::linear::is_grouped(p)  ? device::kGroupsNone
         : operations::linear::is_counted(p) ? device::kGroupsCounts
                                             : device::kGroupsOffsets;
}

/// Rows of a tile: what groups have on average, since few rows leave wider tiles idle.
std::int64_t rows_of_group(const LinearProblem& p) {
  return ceil_div(p.tokens, std::max<std::int64_t>(p.num_experts, 1));
}

}  // namespace

std::int32_t number_type_of_linear(DType dtype) {
  return dtype == DType::bf16 ? device::kNumberBf16 : dtype == DType::f16 ? device::kNumberF16 : device::kNumberF32;
}

std::string refusal_of(const LinearProblem& p) {
  constexpr std::int64_t kMost = 0x7FFFFFFF;
  if (p.num_experts > kMost / 2) return concat("num_experts must be <= ", kMost / 2, " (got ", p.num_experts, ")");
  if (p.pass == LinearPass::linear_backward && p.dx && p.w_transposed && p.w_format.block_rows == 1) {
    return concat("dx wants rows of w with scales of their own contiguous, n is (w_transposed, w_format=",
                  to_string(p.w_format), ")");
  }
  return {};
}

LinearEnds ends_of(const LinearProblem& p) {
  return {p.x_format.defined() && is_end(p.x_format), p.w_format.defined() && is_end(p.w_format), p.w_format.global};
}

LinearConfig forward_config(const LinearProblem& p, const DeviceTraits& traits) {
  LinearConfig c;
  c.element = product_element_of(p.dtype);
  c.a.type = product_type_of(p.dtype);
  c.b.type = product_type_of(operations::linear::w_dtype(p));
  c.b.transposed = p.w_transposed;
  set_scales(c.a, p.x_format, c.element);
  set_scales(c.b, p.w_format, c.element);
  c.a.vectors = has_vectors(c.a, p.unaligned, p.k);
  c.b.vectors = has_vectors(c.b, p.unaligned, p.w_transposed ? p.n : p.k);
  set_bytes(c, p.k, traits);
  set_tiles(c, rows_of_group(p), traits);
  set_direct(c, p.tokens, p.n, p.k, p.batch_invariant, traits);
  // A token's sums don't depend on how many others there are.
  if (!p.batch_invariant) set_streamed(c, rows_of_group(p), p.k, traits);
  set_stages(c, traits);
  const LinearEnds ends = ends_of(p);
  c.row_scale = ends.rows, c.column_scale = ends.columns, c.expert_scale = ends.experts;
  c.groups = groups_of(p);
  c.bias_type = bias_type_of(p.bias);
  c.activation = static_cast<std::int32_t>(operations::kind_of(p.activation));
  c.out_type = number_type_of_linear(p.out_dtype);
  c.vector_out = !p.unaligned && p.n % device::kLaneColumns == 0;
  return c;
}

LinearConfig dx_config(const LinearProblem& p, DType dsum, const DeviceTraits& traits) {
  LinearConfig c;
  c.element = product_element_of(p.dtype);
  c.a.type = product_type_of(dsum);
  c.b.type = product_type_of(operations::linear::w_dtype(p));
  c.b.transposed = !p.w_transposed;
  set_scales_back(c.b, p.w_format);
  c.a.vectors = has_vectors(c.a, p.unaligned, p.n);
  c.b.vectors = has_vectors(c.b, p.unaligned, p.w_transposed ? p.n : p.k);
  set_tiles(c, rows_of_group(p), traits);
  set_stages(c, traits);
  c.expert_scale = p.w_format.global;
  c.groups = groups_of(p);
  c.out_type = number_type_of_linear(p.dtype);
  c.vector_out = !p.unaligned && p.k % device::kLaneColumns == 0;
  return c;
}

LinearDwConfig dw_config(const LinearProblem& p, DType dsum, const DeviceTraits& traits) {
  LinearDwConfig c;
  c.element = product_element_of(p.dtype);
  OperandConfig& x = p.dw_transposed ? c.a : c.b;
  OperandConfig& d = p.dw_transposed ? c.b : c.a;
  x.type = product_type_of(p.dtype);
  d.type = product_type_of(dsum);
  x.transposed = d.transposed = 1;
  x.vectors = has_vectors(x, p.unaligned, p.k);
  d.vectors = has_vectors(d, p.unaligned, p.n);
  set_tiles(c, std::min(p.n, p.k), traits);
  c.block_k = 32;
  set_stages(c, traits);
  c.groups = groups_of(p);
  c.out_type = number_type_of_linear(p.dtype);
  c.vector_out = !p.unaligned && (p.dw_transposed ? p.n : p.k) % device::kLaneColumns == 0;
  return c;
}

std::int64_t splits_of(const LinearConfig& c, std::int64_t tiles, std::int64_t depth, bool batch_invariant,
                       const DeviceTraits& traits) {
  constexpr std::int64_t kMost = 16, kLeastDepth = 512;
  if (batch_invariant || tiles == 0) return 1;
  const std::int64_t blocks = c.right == device::kRightStreamed ? 1 : 2;  // of a multiprocessor, before more is split
  const std::int64_t wanted = blocks * std::int64_t{traits.multiprocessors} / tiles;
  const std::int64_t least = std::max<std::int64_t>(kLeastDepth, c.block_k);
  return std::clamp<std::int64_t>(std::min(wanted, depth / least), 1, kMost);
}

}  // namespace tilewise::backends::portable
