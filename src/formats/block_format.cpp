// The table of formats by their names.
#include "tilewise/block_format.hpp"

#include <algorithm>
#include <array>

#include "core/spelling.hpp"
#include "formats/field.hpp"

namespace tilewise {
namespace {

struct NamedFormat {
  std::string_view name;
  BlockFormat format;
};
constexpr std::int64_t kAll = BlockFormat::kAll;
constexpr std::array<NamedFormat, 10> kFormats{{
    {"none", {}},
    {"fp8_tensor", {DType::fp8_e4m3, DType::f32, kAll, kAll}},
    {"fp8_row", {DType::fp8_e4m3, DType::f32, 1, kAll}},
    {"fp8_1x128", {DType::fp8_e4m3, DType::f32, 1, 128}},
    {"fp8_128x128", {DType::fp8_e4m3, DType::f32, 128, 128}},
    {"fp8_1x128_e8m0", {DType::fp8_e4m3, DType::fp8_e8m0, 1, 128}},
    {"fp8_128x128_e8m0", {DType::fp8_e4m3, DType::fp8_e8m0, 128, 128}},
    {"mxfp8", {DType::fp8_e4m3, DType::fp8_e8m0, 1, 32}},
    {"mxfp4", {DType::fp4_e2m1, DType::fp8_e8m0, 1, 32}},
    {"nvfp4", {DType::fp4_e2m1, DType::fp8_e4m3, 1, 16, true}},
}};

}  // namespace

std::span<const BlockFormat> block_formats() {
  static const auto formats = [] {
    std::array<BlockFormat, kFormats.size()> all;
    std::ranges::transform(kFormats, all.begin(), &NamedFormat::format);
    return all;
  }();
  return formats;
}

std::string_view to_string(const BlockFormat& format) noexcept {
  const auto* found = std::ranges::find(kFormats, format, &NamedFormat::format);
  return found == kFormats.end() ? "unknown" : found->name;
}

BlockFormat parse_block_format(std::string_view name, std::string_view argument) {
  const auto* found = std::ranges::find(kFormats, name, &NamedFormat::name);
  if (found != kFormats.end()) return found->format;
  std::array<std::string_view, kFormats.size()> names;
  std::ranges::transform(kFormats, names.begin(), &NamedFormat::name);
  core::refuse_word(argument, name, names);
}

}  // namespace tilewise
