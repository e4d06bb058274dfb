// Real compilers: a sample of the kernels for every family of GPUs keeps to its registers (sweep_test.cpp has all of
// them), and both compilers lay out the parameter block as the host does. Skips where a compiler is not installed.
#include <string>
#include <string_view>
#include <vector>

#include "backends/portable/kv_cache/kernels.hpp"
#include "compiled_kernels.hpp"
#include "register_problems.hpp"

namespace tilewise::backends::portable {
namespace {

using core::concat;

class Compiled : public ::testing::TestWithParam<std::string_view> {
 protected:
  static void SetUpTestSuite() { find_compilers(); }
};

TEST_P(Compiled, KernelsKeepToRegisters) {
  const jit::Target target = jit::parse_target(GetParam());
  if (const std::string reason = jit::compiler_reason(target); !reason.empty()) GTEST_SKIP() << reason;
  const CompiledKernels kernels = compile_kernels(GetParam(), sampled_problems(GetParam()));
  ASSERT_GT(kernels.builds.size(), 0U);
  expect_within_limits(kernels);
}

std::string name_of(const ::testing::TestParamInfo<std::string_view>& architecture) {
  return std::string(architecture.param);
}

INSTANTIATE_TEST_SUITE_P(Sample, Compiled, ::testing::ValuesIn(kSampledArchitectures), name_of);

/// A kernel that says where the host puts each field of every parameter block.
jit::KernelSource layout_kernel(Family family) {
  std::string text = "#include \"device/attention/params.h\"\n#include \"device/kv_cache/params.h\"\n";
  const auto add_fields = [&text]<typename Kernel> {
    for (const gpu::ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      core::append(text, concat("static_assert(__builtin_offsetof(tilewise::device::", Kernel::kParams, ", ",
                                field.name, ") == ", field.offset, ");\n"));
    }
    core::append(text, concat("static_assert(sizeof(tilewise::device::", Kernel::kParams,
                              ") == ", sizeof(typename Kernel::Params), ");\n"));
  };
  for_each_kernel(add_fields);
  for_each_kv_cache_kernel(add_fields);
  core::append(text,
               family == Family::sm80 ? "extern \"C\" __global__ void" : "extern \"C\" __attribute__((global)) void");
  return {text + " layout(const tilewise::device::ForwardParams) {}\n", "layout", {}};
}

class Layout : public Compiled {};

TEST_P(Layout, OfParametersIsTheHosts) {
  const jit::Target target = jit::parse_target(GetParam());
  if (const std::string reason = jit::compiler_reason(target); !reason.empty()) GTEST_SKIP() << reason;
  const jit::KernelSource source = layout_kernel(family_of(target.architecture));
  EXPECT_EQ(jit::find_or_compile(target, source)->symbol, "layout");
}

INSTANTIATE_TEST_SUITE_P(Devices, Layout, ::testing::Values(std::string_view("sm_80"), std::string_view("gfx942")),
                         name_of);

}  // namespace
}  // namespace tilewise::backends::portable
