// Linear layers on the way to a GPU's kernels: launches of each pass, one compiled kernel for all shapes, what is
// refused, and that the tables of pointers know every pointer.
#include <set>

#include "backends/portable/linear/bind.hpp"
#include "backends/portable/linear/kernels.hpp"
#include "backends/portable/linear/lowering.hpp"
#include "backends/portable/linear/schedule.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using gpu::ParameterField;

template <typename Visit>
void for_each_linear_kernel(Visit&& visit) {
  visit.template operator()<LinearProductKernel>();
  visit.template operator()<LinearCombineKernel>();
  visit.template operator()<LinearDwKernel>();
  visit.template operator()<LinearDbiasKernel>();
}

LinearProblem linear_problem(std::string_view architecture, std::string_view text) {
  return parse_problem(core::concat(text, " device=", to_string(device_of(architecture).device.type)));
}

gpu::Lowering linear_lowered(std::string_view architecture, std::string_view text) {
  Outcome outcome = Portable<operations::Linear>::lower(linear_problem(architecture, text), device_of(architecture),
                                                        family_of(architecture));
  EXPECT_EQ(outcome.refusal, "") << text;
  return std::move(outcome.lowering);
}

TEST(LinearParameters, CoverEachBlock) {
  for_each_linear_kernel([]<typename Kernel> {
    std::size_t end = 0;
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.offset, end) << Kernel::kName << "." << field.name;
      end = field.offset + field.size;
    }
    EXPECT_EQ(end, sizeof(typename Kernel::Params)) << Kernel::kName;
  });
}

/// A pointer that the table of a full block lacks would be null in every launch.
TEST(LinearParameters, TheTablesKnowEveryPointer) {
  for_each_linear_kernel([]<typename Kernel> {
    typename Kernel::Params params{};
    std::set<std::size_t> known;
    Kernel::for_each_pointer(params, [&known](const gpu::Region&, std::size_t offset) { known.insert(offset); });
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.is_pointer(), known.contains(field.offset)) << Kernel::kName << "." << field.name;
    }
  });
}

/// Where the machine does, and scales can wait for sums; else elements are widened.
TEST(LinearSchedule, MultipliesFp8AsItIs) {
  const auto element = [](std::string_view architecture, std::string_view text) {
    const LinearProblem problem = linear_problem(architecture, core::concat("linear tokens=4096 n=4096 ", text));
    return forward_config(problem, traits_of(device_of(architecture), family_of(architecture))).element;
  };
  for (const std::string_view architecture : {"gfx942", "gfx950"}) {
    for (const std::string_view text :
         {"k=4096 x_format=fp8_row w_format=fp8_tensor", "k=4096 x_format=fp8_1x128 w_format=fp8_128x128",
          "k=4096 x_format=fp8_1x128_e8m0 w_format=fp8_128x128_e8m0"})
      EXPECT_EQ(element(architecture, text), device::kProductE4m3) << architecture << ": " << text;
    for (const std::string_view text :
         {"k=4097 x_format=fp8_row w_format=fp8_row", "k=4096 x_format=fp8_row w_format=fp8_row w_transposed=1",
          "k=4096 x_format=fp8_row w_format=fp8_row unaligned=1"})
      EXPECT_EQ(element(architecture, text), device::kProductBf16) << architecture << ": " << text;
  }
  for (const std::string_view architecture : {"sm_90a", "gfx90a", "gfx1100"})
    EXPECT_EQ(element(architecture, "k=4096 x_format=fp8_row w_format=fp8_row"), device::kProductBf16) << architecture;
}

/// Of gfx950 alone, where the depth is whole instructions.
TEST(LinearSchedule, LeavesPowersOfTwoToTheMatrixUnit) {
  const auto config = [](std::string_view architecture, std::string_view text) {
    const LinearProblem problem = linear_problem(architecture, core::concat("linear tokens=4096 n=4096 ", text));
    return forward_config(problem, traits_of(device_of(architecture), family_of(architecture)));
  };
  for (const std::string_view text :
       {"k=4096 x_format=mxfp8 w_format=mxfp8", "k=4160 x_format=mxfp8 w_format=mxfp4",
        "k=4096 x_format=fp8_row w_format=mxfp4", "k=4096 x_format=fp8_1x128_e8m0 w_format=mxfp8",
        "k=4096 x_format=fp8_1x128 w_format=mxfp4"}) {
    EXPECT_TRUE(config("gfx950", text).scales_products()) << text;
    EXPECT_FALSE(config("gfx942", text).scales_products()) << text;
  }
  for (const std::string_view text :
       {"k=4096 dtype=bf16 w_format=mxfp4", "k=4128 x_format=mxfp8 w_format=mxfp4",
        "k=4096 x_format=mxfp8 w_format=nvfp4", "k=4096 x_format=fp8_1x128_e8m0 w_format=fp8_128x128_e8m0",
        "k=4096 x_format=mxfp8 w_format=mxfp8 w_transposed=1", "k=4096 x_format=mxfp8 w_format=mxfp4 unaligned=1"})
    EXPECT_FALSE(config("gfx950", text).scales_products()) << text;
}

TEST(LinearLowering, LaunchesWhatACallNeeds) {
  for (const std::string_view architecture : kMachines) {
    const auto names = [&](std::string_view text) { return names_of(linear_lowered(architecture, text)); };
    EXPECT_EQ(names("linear dtype=bf16 tokens=4096 n=4096 k=4096"), "linear ");
    EXPECT_EQ(names("linear dtype=bf16 tokens=4 n=512 k=4096"), "linear linear_combine ");
    EXPECT_EQ(names("linear dtype=bf16 tokens=4 n=512 k=4096 batch_invariant=1"), "linear ");
    EXPECT_EQ(names("linear_backward dtype=bf16 tokens=4096 n=4096 k=4096 bias=f32 dbias=1"),
              "linear linear_dw linear_dbias ");
    EXPECT_EQ(names("linear_backward dtype=bf16 tokens=4096 n=4096 k=4096 activation=gelu"),
              "linear linear linear_dw ");
    EXPECT_EQ(names("linear dtype=bf16 tokens=0 n=4096 k=4096"), "");
  }
}

/// Only where the activation's argument is computed again, and where parts of sums are kept, is there a workspace.
TEST(LinearLowering, TheWorkspaceIsWhatIsKept) {
  const auto bytes = [](std::string_view text) { return linear_lowered("gfx942", text).workspace_bytes; };
  EXPECT_EQ(bytes("linear dtype=bf16 tokens=4096 n=4096 k=4096"), 0u);
  EXPECT_EQ(bytes("linear_backward dtype=bf16 tokens=4096 n=4096 k=4096"), 0u);
  EXPECT_EQ(bytes("linear_backward dtype=bf16 tokens=4096 n=4096 k=4096 activation=silu"), 2u * 4096 * 4096);
  EXPECT_EQ(bytes("linear dtype=bf16 tokens=4 n=512 k=4096") % (4u * 4 * 512), 0u);
}

TEST(LinearLowering, ShapesShareAKernel) {
  std::set<std::string> keys;
  for (const std::string_view shape :
       {"tokens=4096 n=4096 k=4096", "tokens=999 n=2880 k=2880", "tokens=70000 n=64 k=128"}) {
    const gpu::Lowering lowering = linear_lowered("sm_90a", core::concat("linear dtype=bf16 bias=bf16 ", shape));
    for (const gpu::Launch* launch : lowering.launches()) keys.insert(gpu::make_source(launch->key, false).stub);
  }
  EXPECT_EQ(keys.size(), 1u);
}

/// Each row of no group, each group's last tile and each tile of 128 rows has a block.
TEST(LinearLowering, TheGridHasRoomForAnyGroups) {
  const auto blocks = [](std::string_view text) {
    return linear_lowered("sm_90a", text).launches().front()->grid.count();
  };
  EXPECT_EQ(blocks("linear dtype=bf16 tokens=12800 n=128 k=64 groups=offsets_i32 num_experts=8"), 100u + 8 + 2);
  EXPECT_EQ(blocks("linear dtype=bf16 tokens=3 n=64 k=64 groups=offsets_i32 num_experts=256"), 3u * 4);
}

TEST(LinearLowering, FactorsOfWholeSumsAreLeftToTheEnd) {
  const DeviceTraits traits = traits_of("sm_90a");
  const auto config = [&](std::string_view text) { return forward_config(linear_problem("sm_90a", text), traits); };
  const device::LinearConfig rows = config("linear x_format=fp8_row w_format=fp8_row tokens=256 n=256 k=256");
  EXPECT_TRUE(rows.row_scale && rows.column_scale);
  EXPECT_EQ(rows.a.scale_use, device::kScaleNever);
  const device::LinearConfig blocks = config("linear x_format=fp8_1x128 w_format=fp8_128x128 tokens=256 n=256 k=256");
  EXPECT_EQ(blocks.a.scale_use, device::kScaleSums);
  EXPECT_EQ(blocks.scaled_depth(), 128);
  // Powers of two go into bf16's exponents, and not into f16's.
  EXPECT_EQ(config("linear w_format=mxfp4 dtype=bf16 tokens=256 n=256 k=256").b.scale_use, device::kScaleElements);
  EXPECT_EQ(config("linear w_format=mxfp4 dtype=f16 tokens=256 n=256 k=256").b.scale_use, device::kScaleSums);
  EXPECT_EQ(config("linear w_format=nvfp4 dtype=f16 tokens=256 n=256 k=256").b.scale_use, device::kScaleElements);
}

/// Weights that are multiplied as they are pass no shared memory on CDNA, where tiles are many enough.
TEST(LinearLowering, WeightsGoToRegistersWhereTheyCan) {
  const auto direct = [](std::string_view architecture, std::string_view text) {
    return forward_config(linear_problem(architecture, text), traits_of(architecture)).right;
  };
  EXPECT_EQ(direct("gfx942", "linear dtype=bf16 tokens=4096 n=4096 k=4096"), 1);
  EXPECT_EQ(direct("gfx942", "linear dtype=bf16 tokens=512 n=4096 k=4096"), 0);
  EXPECT_EQ(direct("gfx942", "linear dtype=bf16 tokens=4096 n=4096 k=4096 w_transposed=1"), 0);
  EXPECT_EQ(direct("gfx942", "linear dtype=bf16 tokens=4096 n=4096 k=4090"), 0);
  EXPECT_EQ(direct("gfx942", "linear w_format=mxfp4 dtype=bf16 tokens=4096 n=4096 k=4096"), 1);
  EXPECT_EQ(direct("gfx950", "linear w_format=nvfp4 dtype=f16 tokens=4096 n=4096 k=4096"), 1);
  EXPECT_EQ(direct("gfx950", "linear x_format=mxfp8 w_format=mxfp4 tokens=4096 n=4096 k=4096"), 1);
  EXPECT_EQ(direct("gfx942", "linear w_format=mxfp4 dtype=f16 tokens=4096 n=4096 k=4096"), 0);
  EXPECT_EQ(direct("gfx942", "linear w_format=mxfp4 dtype=bf16 tokens=4096 n=4096 k=4096 batch_invariant=1"), 0);
  EXPECT_EQ(direct("sm_90a", "linear dtype=bf16 tokens=4096 n=4096 k=4096"), 0);
  // On NVIDIA where rows are few; a token's sums must not depend on how many there are where that is asked for.
  EXPECT_EQ(direct("sm_90a", "linear dtype=bf16 tokens=16 n=4096 k=4096"), device::kRightStreamed);
  EXPECT_EQ(direct("sm_80", "linear w_format=mxfp4 dtype=bf16 tokens=1 n=4096 k=4096"), device::kRightStreamed);
  EXPECT_EQ(direct("sm_90a", "linear dtype=bf16 tokens=16 n=4096 k=4096 batch_invariant=1"), 0);
  EXPECT_EQ(direct("sm_90a", "linear dtype=bf16 tokens=17 n=4096 k=4096"), 0);
  EXPECT_EQ(direct("sm_90a", "linear dtype=bf16 tokens=1 n=4096 k=4096 w_transposed=1"), 0);
  EXPECT_EQ(direct("gfx942", "linear dtype=bf16 tokens=1 n=4096 k=4096"), 0);
}

TEST(LinearLowering, TooMuchIsRefused) {
  const auto refusal = [](std::string_view text) {
    return Portable<operations::Linear>::lower(linear_problem("sm_90a", text), device_of("sm_90a"), family_of("sm_90a"))
        .refusal;
  };
  EXPECT_EQ(refusal("linear dtype=bf16 tokens=3 n=64 k=64 groups=offsets_i64 num_experts=2000000000"),
            "num_experts must be <= 1073741823 (got 2000000000)");
  EXPECT_EQ(refusal("linear dtype=bf16 tokens=2000000000 n=100000 k=64"),
            "tiles must be <= 2147483647 (got 15625000 * 782 * 1)");
}

TEST(LinearLowering, StridesOfOperandsCountBytes) {
  const PortableRow<operations::Linear> row("cuda.sm80", gpu::Family::sm80, nullptr);
  const std::string_view text = "linear w_format=mxfp4 dtype=bf16 tokens=4 n=64 k=512 groups=counts_i32 num_experts=3";
  const LinearProblem problem = linear_problem("sm_90a", text);
  const auto call =
      std::static_pointer_cast<const operations::linear::LinearParams>(row.contiguous_call(problem).params);
  const gpu::Lowering lowering = linear_lowered("sm_90a", text);
  auto params = params_of<LinearProductKernel>(*lowering.launches().front());
  bind(*call, params);
  EXPECT_EQ(params.a.line_stride, 2 * 512);
  EXPECT_EQ(params.b.line_stride, 256);
  EXPECT_EQ(params.b.expert_stride, 64 * 256);
  EXPECT_EQ(params.b.scales.row_stride, 512 / 32);
  EXPECT_EQ(params.b.scales.expert_stride, 64 * 512 / 32);
  EXPECT_EQ(params.epilogue.out.row_stride, 64);
}

}  // namespace
}  // namespace tilewise::backends::portable
