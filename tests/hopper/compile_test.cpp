// A real compiler: a sample of Hopper's kernels keeps to its registers (sweep_test.cpp has the others), and the
// parameter block lies as the host says. Skips where NVRTC is not installed.
#include "backends/cuda/hopper/linear_kernels.hpp"
#include "backends/cuda/hopper/moe_kernels.hpp"
#include "compiled.hpp"
#include "device/gemm/sm90/params.h"

namespace tilewise::backends::hopper {
namespace {

using core::concat;

/// What the host says of a kernel's parameters, as assertions for the compiler.
template <typename Kernel>
std::string layout_of() {
  std::string text;
  for (const gpu::ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
    core::append(text, concat("static_assert(__builtin_offsetof(tilewise::device::", Kernel::kParams, ", ", field.name,
                              ") == ", field.offset, ");\n"));
  }
  core::append(text, concat("static_assert(sizeof(tilewise::device::", Kernel::kParams,
                            ") == ", sizeof(typename Kernel::Params), ");\n"));
  return text;
}

TEST_F(HopperCompiled, AttentionKeepsToRegisters) { attention_keeps_to_registers(Registers::sampled); }
TEST_F(HopperCompiled, ExpertLayersKeepToRegisters) { expert_layers_keep_to_registers(Registers::sampled); }
TEST_F(HopperCompiled, ExpertGradientsKeepToRegisters) { expert_gradients_keep_to_registers(Registers::sampled); }
TEST_F(HopperCompiled, LinearLayersKeepToRegisters) { linear_layers_keep_to_registers(Registers::sampled); }
TEST_F(HopperCompiled, GroupedLayersKeepToRegisters) { grouped_layers_keep_to_registers(); }

TEST_F(HopperCompiled, ParametersLieAsTheHostSays) {
  const std::string text =
      concat("#include \"device/hopper/params.h\"\n#include \"device/gemm/sm90/params.h\"\n",
             "#include \"device/moe/sm90/backward/params.h\"\n", layout_of<Forward>(), layout_of<Bwd>(),
             layout_of<BwdPreprocess>(), layout_of<Gemm>(), layout_of<ScaledGemm>(), layout_of<GroupedGemm>(),
             layout_of<GemmPrepare>(), layout_of<MoeScaledProduct>(), layout_of<MoeCombine>(), layout_of<MoeSort>(),
             layout_of<MoeGather>(), layout_of<MoeLayer>(), layout_of<MoeDecode>(), layout_of<MoeSlopes>(),
             layout_of<MoeSavedSlopes>(), layout_of<MoeDweights>(), layout_of<MoeDw>(),
             "extern \"C\" __global__ void layout() {}\n");
  EXPECT_EQ(jit::find_or_compile(target_, {text, "layout", {}})->symbol, "layout");
}

}  // namespace
}  // namespace tilewise::backends::hopper
