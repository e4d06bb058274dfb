// Quantising on the way to a GPU's kernels: launches of each format, one compiled kernel for all shapes, and that the
// tables of pointers know every pointer.
#include <algorithm>
#include <set>

#include "backends/portable/quantize/kernels.hpp"
#include "backends/portable/quantize/lowering.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using gpu::ParameterField;

template <typename Visit>
void for_each_quantize_kernel(Visit&& visit) {
  visit.template operator()<QuantizeExtremes>();
  visit.template operator()<QuantizeWholeScale>();
  visit.template operator()<QuantizeBlocks>();
  visit.template operator()<Dequantize>();
}

gpu::Lowering quantize_lowered(std::string_view architecture, std::string_view text) {
  const QuantizeProblem problem =
      parse_problem(core::concat(text, " device=", to_string(device_of(architecture).device.type)));
  Outcome outcome = Portable<operations::Quantize>::lower(problem, device_of(architecture), family_of(architecture));
  EXPECT_EQ(outcome.refusal, "") << text;
  return std::move(outcome.lowering);
}

TEST(QuantizeParameters, CoverEachBlock) {
  for_each_quantize_kernel([]<typename Kernel> {
    std::size_t end = 0;
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.offset, end) << Kernel::kName << "." << field.name;
      end = field.offset + field.size;
    }
    EXPECT_EQ(end, sizeof(typename Kernel::Params)) << Kernel::kName;
  });
}

/// A pointer that the table of a full block lacks would be null in every launch.
TEST(QuantizeParameters, TheTablesKnowEveryPointer) {
  for_each_quantize_kernel([]<typename Kernel> {
    typename Kernel::Params params{};
    params.shape.block_rows = params.shape.block_columns = 1;
    std::set<std::size_t> known;
    Kernel::for_each_pointer(params, [&known](const gpu::Region&, std::size_t offset) { known.insert(offset); });
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.is_pointer(), known.contains(field.offset)) << Kernel::kName << "." << field.name;
    }
  });
}

/// What the whole tensor shares is found first.
TEST(QuantizeLowering, LaunchesWhatAFormatNeeds) {
  for (const std::string_view architecture : kMachines) {
    const auto names = [&](std::string_view text) {
      return names_of(quantize_lowered(architecture, core::concat(text, " dtype=bf16 rows=300 columns=2048")));
    };
    for (const std::string_view format : {"fp8_row", "fp8_1x128", "fp8_128x128", "mxfp8", "mxfp4"})
      EXPECT_EQ(names(core::concat("quantize format=", format)), "quantize ") << format;
    for (const std::string_view format : {"fp8_tensor", "nvfp4"})
      EXPECT_EQ(names(core::concat("quantize format=", format)), "quantize_extremes quantize_whole quantize ");
    EXPECT_EQ(names("dequantize format=nvfp4"), "dequantize ");
  }
}

/// Scales of nothing are written all the same.
TEST(QuantizeLowering, WithoutNumbersThereAreScales) {
  EXPECT_EQ(names_of(quantize_lowered("sm_90a", "quantize format=nvfp4 rows=0 columns=64")),
            "quantize_extremes quantize_whole ");
  EXPECT_EQ(names_of(quantize_lowered("sm_90a", "quantize format=fp8_row rows=5 columns=0")), "quantize ");
  EXPECT_EQ(names_of(quantize_lowered("sm_90a", "quantize format=mxfp4 rows=5 columns=0")), "");
  EXPECT_EQ(names_of(quantize_lowered("sm_90a", "dequantize format=mxfp4 rows=0 columns=64")), "");
}

TEST(QuantizeLowering, ShapesShareAKernel) {
  std::set<std::string> keys;
  for (const std::string_view shape : {"rows=1 columns=8", "rows=4096 columns=14336", "rows=7 columns=2880",
                                       "stacked=1 num_experts=9 rows=3 columns=16"}) {
    const gpu::Lowering lowering = quantize_lowered("gfx942", core::concat("quantize format=mxfp4 dtype=bf16 ", shape));
    for (const gpu::Launch* launch : lowering.launches()) keys.insert(gpu::make_source(launch->key, false).stub);
  }
  EXPECT_EQ(keys.size(), 1u);
}

TEST(QuantizeLowering, TooManyPlacesAreRefused) {
  const QuantizeProblem problem =
      parse_problem("quantize device=cuda format=mxfp4 stacked=1 num_experts=70000 rows=40000 columns=32");
  EXPECT_EQ(Portable<operations::Quantize>::lower(problem, device_of("sm_90a"), family_of("sm_90a")).refusal,
            "num_experts * rows * ceil(columns / 256) must be <= 2147483647 (got 70000 * 40000 * 1)");
}

TEST(QuantizeLowering, StridesOfElementsCountBytes) {
  const PortableRow<operations::Quantize> row("cuda.sm80", gpu::Family::sm80, nullptr);
  const QuantizeProblem problem =
      parse_problem("quantize device=cuda format=nvfp4 dtype=bf16 stacked=1 num_experts=3 rows=4 columns=64");
  const auto call =
      std::static_pointer_cast<const operations::quantize::QuantizeParams>(row.contiguous_call(problem).params);
  device::QuantizeParams params{};
  bind(*call, true, params);
  EXPECT_EQ(params.numbers.row_stride, 64);
  EXPECT_EQ(params.elements.row_stride, 32);
  EXPECT_EQ(params.elements.expert_stride, 128);
  EXPECT_EQ(params.scales.expert_stride, 16);
  EXPECT_EQ(params.whole.expert_stride, 1);
}

}  // namespace
}  // namespace tilewise::backends::portable
