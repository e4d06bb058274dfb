// See schedule.hpp.
#include "backends/portable/linear/schedule.hpp"

#include <algorithm>

#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "formats/field.hpp"
#include "formats/scales.hpp"
#include "operations/activation.hpp"
#include "operations/linear/rules.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div, core::concat;
using device::LinearConfig, device::LinearDwConfig, device::OperandConfig, device::ProductConfig;

/// Sizes of a scale's block as configs say them: 0 is all.
std::int32_t block_size(std::int64_t size) { return size == BlockFormat::kAll ? 0 : static_cast<std::int32_t>(size); }

/// Whether scales are powers of two, or of so few digits that elements hold them.
bool widens_exactly(const BlockFormat& format, std::int32_t element) {
  if (element == device::kProductF32 || format.scale == DType::fp8_e4m3) return true;
  return format.scale == DType::fp8_e8m0 && element == device::kBf16;
}

/// Whether a scale is that of whole sums.
bool is_end(const BlockFormat& format) { return format.block_columns == BlockFormat::kAll; }

void set_scales(OperandConfig& o, const BlockFormat& format, std::int32_t element) {
  if (!format.defined() || is_end(format)) return;
  o.scale_use = widens_exactly(format, element) ? device::kScaleElements : device::kScaleSums;
  o.scale_type = formats::scale_type_of(format.scale);
  o.scale_rows = block_size(format.block_rows);
  o.scale_depth = block_size(format.block_columns);
}

/// Whether lines start on 16 bytes and are whole runs.
std::int32_t has_vectors(const OperandConfig& o, bool unaligned, std::int64_t length) {
  return !unaligned && length % o.run() == 0;
}

/// Elements that are multiplied.
std::int32_t element_of(DType dtype) {
  return dtype == DType::f32 ? device::kProductF32 : dtype == DType::f16 ? device::kProductF16 : device::kProductBf16;
}

std::int32_t bias_type_of(LinearBias bias) {
  return bias == LinearBias::none   ? device::kBiasNone
         : bias == LinearBias::f32  ? device::kBiasF32
         : bias == LinearBias::bf16 ? device::kBiasBf16
                                    : device::kBiasF16;
}

std::int32_t groups_of(const LinearProblem& p) {
  return !operations::linear::is_grouped(p)  ? device::kGroupsNone
         : operations::linear::is_counted(p) ? device::kGroupsCounts
                                             : device::kGroupsOffsets;
}

/// Rows of a tile: what groups have on average, since few rows leave wider tiles idle.
std::int64_t rows_of_group(const LinearProblem& p) {
  return ceil_div(p.tokens, std::max<std::int64_t>(p.num_experts, 1));
}

bool is_amd(const DeviceTraits& traits) { return traits.family != gpu::Family::sm80; }

/// Tiles for so many rows. Waves share the columns where rows are few.
void set_tiles(ProductConfig& c, std::int64_t rows, const DeviceTraits& traits) {
  const bool cdna = traits.family == gpu::Family::cdna, rdna = traits.family == gpu::Family::rdna;
  const bool scaled = c.scaled_depth() != 0;
  c.waves = 4;
  c.stages = 2;
  if (c.in_f32()) {
    c.block_m = rows <= 32 ? 32 : 64;
    c.block_n = rows <= 32 ? 128 : 64;
    c.waves_n = rows <= 32 ? 4 : 2;
    c.block_k = 32;
    return;
  }
  const std::int32_t least = cdna ? 32 : 16;
  if (rows <= 64) {
    c.block_m = rows <= least ? least : rows <= 32 ? 32 : 64;
    c.block_n = cdna ? 128 : 64;
    c.waves_n = 4;
    c.block_k = rdna ? 32 : cdna ? 64 : 128;
  } else {
    // Sums that are scaled take registers twice.
    c.block_m = 128;
    c.block_n = rdna && scaled ? 64 : 128;
    c.waves = rdna || scaled ? 8 : 4;
    c.waves_n = rdna && scaled ? 2 : c.waves / 2;
    c.block_k = is_amd(traits) && traits.shared_bytes <= 64 << 10 ? 32 : 64;
  }
  if (scaled) c.block_k = std::min(c.block_k, c.scaled_depth());
}

/// More tiles on their way where rows are copied beside the lanes and there is room for two blocks.
void set_stages(ProductConfig& c, const DeviceTraits& traits) {
  constexpr std::int32_t kMost = 4;
  if (is_amd(traits) || c.in_f32()) return;
  const bool copies = c.a.type == c.element && c.b.type == c.element && !c.b.transposed && !c.a.transposed;
  while (copies && c.stages < kMost) {
    ++c.stages;
    if (2 * std::size_t{c.shared_bytes()} <= traits.shared_bytes) continue;
    --c.stages;
    return;
  }
}

}  // namespace

std::int32_t product_type_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return device::kProductBf16;
    case DType::f16:
      return device::kProductF16;
    case DType::fp8_e4m3:
      return device::kProductE4m3;
    case DType::fp4_e2m1:
      return device::kProductE2m1;
    default:
      return device::kProductF32;
  }
}

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
  c.element = element_of(p.dtype);
  c.a.type = product_type_of(p.dtype);
  c.b.type = product_type_of(operations::linear::w_dtype(p));
  c.b.transposed = p.w_transposed;
  set_scales(c.a, p.x_format, c.element);
  set_scales(c.b, p.w_format, c.element);
  c.a.vectors = has_vectors(c.a, p.unaligned, p.k);
  c.b.vectors = has_vectors(c.b, p.unaligned, p.w_transposed ? p.n : p.k);
  set_tiles(c, rows_of_group(p), traits);
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
  c.element = element_of(p.dtype);
  c.a.type = product_type_of(dsum);
  c.b.type = product_type_of(operations::linear::w_dtype(p));
  c.b.transposed = !p.w_transposed;
  if (p.w_format.defined()) {
    c.b.scale_use = device::kScaleElements;
    c.b.scale_type = formats::scale_type_of(p.w_format.scale);
    c.b.scale_rows = block_size(p.w_format.block_columns);
    c.b.scale_depth = block_size(p.w_format.block_rows);
  }
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
  c.element = element_of(p.dtype);
  OperandConfig& x = p.dw_transposed ? c.a : c.b;
  OperandConfig& d = p.dw_transposed ? c.b : c.a;
  x.type = product_type_of(p.dtype);
  d.type = product_type_of(dsum);
  x.transposed = d.transposed = 1;
  x.vectors = has_vectors(x, p.unaligned, p.k);
  d.vectors = has_vectors(d, p.unaligned, p.n);
  set_tiles(c, std::min(p.n, p.k), traits);
  c.block_k = 32;
  c.groups = groups_of(p);
  c.out_type = number_type_of_linear(p.dtype);
  c.vector_out = !p.unaligned && (p.dw_transposed ? p.n : p.k) % device::kLaneColumns == 0;
  return c;
}

std::int64_t splits_of(const LinearConfig& c, std::int64_t tiles, std::int64_t depth, bool batch_invariant,
                       const DeviceTraits& traits) {
  constexpr std::int64_t kMost = 16, kLeastDepth = 512;
  if (batch_invariant || tiles == 0) return 1;
  const std::int64_t wanted = 2 * std::int64_t{traits.multiprocessors} / tiles;
  const std::int64_t least = std::max<std::int64_t>(kLeastDepth, c.block_k);
  return std::clamp<std::int64_t>(std::min(wanted, depth / least), 1, kMost);
}

}  // namespace tilewise::backends::portable
