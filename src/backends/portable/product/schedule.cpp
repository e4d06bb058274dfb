// See schedule.hpp.
#include "backends/portable/product/schedule.hpp"

#include <algorithm>
#include <cstddef>

#include "core/ceil_div.hpp"
#include "formats/scales.hpp"

namespace tilewise::backends::portable {
namespace {

using device::OperandConfig, device::ProductConfig;

/// Sizes of a scale's block as configs say them: 0 is all.
std::int32_t block_size(std::int64_t size) { return size == BlockFormat::kAll ? 0 : static_cast<std::int32_t>(size); }

/// Whether scales are powers of two, or of so few digits that elements hold them.
bool widens_exactly(const BlockFormat& format, std::int32_t element) {
  if (element == device::kProductF32 || format.scale == DType::fp8_e4m3) return true;
  return format.scale == DType::fp8_e8m0 && element == device::kBf16;
}

/// Whether 32 rows from a multiple of 32 on have one scale of sums.
bool shares_scales(const OperandConfig& o) { return o.scale_use != device::kScaleSums || o.scale_rows % 32 == 0; }

bool is_amd(const DeviceTraits& traits) { return traits.family != gpu::Family::sm80; }

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

std::int32_t bias_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return device::kBiasF32;
    case DType::bf16:
      return device::kBiasBf16;
    case DType::f16:
      return device::kBiasF16;
    default:
      return device::kBiasNone;
  }
}

std::int32_t product_element_of(DType dtype) {
  return dtype == DType::f32 ? device::kProductF32 : dtype == DType::f16 ? device::kProductF16 : device::kProductBf16;
}

void set_scales(OperandConfig& o, const BlockFormat& format, std::int32_t element) {
  if (!format.defined() || is_end(format)) return;
  o.scale_use = widens_exactly(format, element) ? device::kScaleElements : device::kScaleSums;
  o.scale_type = formats::scale_type_of(format.scale);
  o.scale_rows = block_size(format.block_rows);
  o.scale_depth = block_size(format.block_columns);
}

void set_scales_back(OperandConfig& o, const BlockFormat& format) {
  if (!format.defined()) return;
  o.scale_use = device::kScaleElements;
  o.scale_type = formats::scale_type_of(format.scale);
  o.scale_rows = block_size(format.block_columns);
  o.scale_depth = block_size(format.block_rows);
}

std::int32_t has_vectors(const OperandConfig& o, bool unaligned, std::int64_t length) {
  return !unaligned && length % o.run() == 0;
}

namespace {

/// Leaves an operand's scales to the matrix unit where it takes them; false where elements must have them.
bool set_product_scales(OperandConfig& o) {
  const bool fits = o.scale_depth == 32 || (o.scale_depth % 64 == 0 && o.scale_depth > 0);
  if (o.scale_use == device::kScaleNever) return true;
  if (o.scale_use == device::kScaleSums) return o.scale_depth > 0 && o.scale_depth % 64 == 0;  // of sums they stay
  if (o.scale_use == device::kScaleElements && o.scale_type == device::kScaleE8m0 && fits) {
    o.scale_use = device::kScaleProducts;
    return true;
  }
  return false;
}

/// fp8 times fp8 or e2m1.
void set_scaled_bytes(ProductConfig& c, std::int64_t depth) {
  constexpr std::int64_t kDeep = 64;  // of an instruction
  ProductConfig scaled = c;
  const bool is_fp8 = c.a.type == device::kProductE4m3;
  const bool fits = c.b.type == device::kProductE4m3 || c.b.type == device::kProductE2m1;
  if (!is_fp8 || !fits || c.a.transposed || c.b.transposed || !c.a.vectors || !c.b.vectors || depth % kDeep != 0)
    return;
  if (!set_product_scales(scaled.a) || !set_product_scales(scaled.b) || !scaled.scales_products()) return;
  scaled.element = device::kProductE4m3;
  c = scaled;
}

}  // namespace

void set_bytes(ProductConfig& c, std::int64_t depth, const DeviceTraits& traits) {
  constexpr std::int32_t kDeep = 128;  // a step whose sums are worth a factor of their own
  const auto fits = [](const OperandConfig& o) {
    const bool by_sums = o.scale_use != device::kScaleElements || o.scale_depth == kDeep;
    return o.type == device::kProductE4m3 && !o.transposed && o.vectors != 0 && by_sums;
  };
  if (!traits.multiplies_bytes || c.in_f32()) return;
  if (!fits(c.a) || !fits(c.b)) {
    if (traits.scales_products) set_scaled_bytes(c, depth);
    return;
  }
  c.element = device::kProductE4m3;
  for (OperandConfig* o : {&c.a, &c.b})
    if (o->scale_use == device::kScaleElements) o->scale_use = device::kScaleSums;
}

void set_tiles(ProductConfig& c, std::int64_t rows, const DeviceTraits& traits) {
  const bool cdna = traits.family == gpu::Family::cdna, rdna = gpu::has_wmma(traits.family);
  const bool scaled = c.scaled_depth() != 0;
  const bool turned = c.a.transposed != 0 && c.b.transposed != 0;
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
    // Sums that are scaled take registers twice, and columns of both operands are more on their way to shared memory.
    const bool few_columns = rdna && (scaled || turned);
    c.block_m = 128;
    c.block_n = few_columns ? 64 : 128;
    c.waves = rdna || scaled ? 8 : 4;
    c.waves_n = few_columns ? 2 : c.waves / 2;
    c.block_k = is_amd(traits) && traits.shared_bytes <= 64 << 10 ? 32 : 64;
  }
  if (c.in_bytes()) c.block_k *= 2;
  if (scaled) c.block_k = std::min(c.block_k, c.scaled_depth());
}

namespace {

/// Whether weights of 4 bits are widened in registers: see device/product/direct_fours.h.
bool fours_fit(const ProductConfig& c) {
  const OperandConfig& b = c.b;
  return b.type == device::kProductE2m1 && !c.in_bytes() && b.scale_use == device::kScaleElements &&
         b.scale_type != device::kScaleF32 && b.scale_rows == 1 && (b.scale_depth == 32 || b.scale_depth == 16);
}

}  // namespace

void set_direct(ProductConfig& c, std::int64_t rows, std::int64_t columns, std::int64_t depth, bool batch_invariant,
                const DeviceTraits& traits) {
  constexpr std::int32_t kRows = 64, kByteDepth = 128;
  // Their sums add up in another order than those of few rows.
  const bool fours = fours_fit(c) && !batch_invariant, scaled = c.scales_products();
  // A step's sums beside those of all, and bytes to translate, leave room for half of the columns. What is widened is
  // so for as many rows as there are, and scales come for as many.
  const bool few_columns = fours || scaled || (c.scaled_depth() != 0 && traits.architecture != "gfx950");
  const std::int32_t at_once = few_columns ? 256 : 512, block_m = fours || scaled ? c.block_m : kRows;
  const std::int32_t least_depth = fours || scaled ? 64 : c.in_bytes() ? kByteDepth : 32;
  if (traits.family != gpu::Family::cdna || c.in_f32() || c.block_m < kRows || c.b.transposed != 0) return;
  if ((c.b.type != c.element && !fours && !scaled) || c.b.vectors == 0 || depth % least_depth != 0) return;
  const bool sums = c.in_bytes() && !scaled && c.scaled_depth() == kByteDepth && shares_scales(c.b);
  if (c.scaled_depth() != 0 && !sums) return;
  const std::int64_t tiles =
      core::ceil_div(rows, std::int64_t{block_m}) * core::ceil_div(columns, std::int64_t{at_once});
  if (tiles < traits.multiprocessors) return;
  c.right = device::kRightDirect;
  c.block_m = block_m, c.block_n = at_once;
  c.waves = c.waves_n = 4;
  c.block_k = c.in_bytes() && depth % kByteDepth == 0 ? kByteDepth : depth % 64 == 0 ? 64 : 32;
}

void set_streamed(ProductConfig& c, std::int64_t rows, std::int64_t depth, const DeviceTraits& traits) {
  constexpr std::int32_t kRows = 16, kColumns = 16, kLineLanes = 4;  // see device/product/stream_product.h
  const std::int32_t run = 128 / device::bits_of_product_type(c.b.type), step = kLineLanes * run;
  if (traits.family != gpu::Family::sm80 || c.in_f32() || rows > kRows || depth % run != 0) return;
  if (c.a.type != c.element || c.a.transposed != 0 || c.a.vectors == 0 || c.a.scale_use != device::kScaleNever) return;
  const bool widened = c.b.type == device::kProductE4m3 || c.b.type == device::kProductE2m1;
  if (c.b.transposed != 0 || c.b.vectors == 0 || (c.b.type != c.element && !widened)) return;
  const bool sums = c.b.scale_use == device::kScaleSums;
  if (sums && (c.b.scale_depth % step != 0 || c.b.scale_rows % kColumns != 0)) return;
  c.right = device::kRightStreamed;
  c.block_m = rows <= kRows / 2 ? kRows / 2 : kRows;
  c.block_n = kColumns;
  c.waves = c.waves_n = widened ? 8 : 4;
  c.block_k = widened ? step : 2 * step;
  c.stages = widened ? 2 : 3;
}

void set_stages(ProductConfig& c, const DeviceTraits& traits) {
  constexpr std::int32_t kMost = 4;
  if (is_amd(traits) || c.in_f32() || c.right == device::kRightStreamed) return;
  const bool copies = c.a.type == c.element && c.b.type == c.element;
  while (copies && c.stages < kMost) {
    ++c.stages;
    if (2 * std::size_t{c.shared_bytes()} <= traits.shared_bytes) continue;
    --c.stages;
    return;
  }
}

}  // namespace tilewise::backends::portable
