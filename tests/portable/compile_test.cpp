// Real compilers: a representative set of kernels for every family of GPUs keeps its registers, and both compilers
// lay out the parameter block as the host does. Skips where a compiler is not installed.
#include <cstdlib>
#include <vector>

#include "backends/portable/compile_ahead.hpp"
#include "backends/portable/launch_description.hpp"
#include "jit/kernel_cache.hpp"
#include "jit/search_paths.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using core::concat;

struct Target {
  std::string architecture;
  std::vector<std::string> problems;
};

void PrintTo(const Target& target, std::ostream* stream) { *stream << target.architecture; }

/// Bytes that each lane may store because registers ran out: on NVIDIA's those that ptxas spills, on AMD's any scratch.
int most_bytes(const jit::Target& target) { return target.kind == jit::TargetKind::cuda ? 64 : 0; }

int bytes_out_of_registers(const KernelBuild& build) {
  const jit::KernelResources& used = build.compiled->resources;
  return build.target.kind == jit::TargetKind::cuda ? used.spill_bytes : used.scratch_bytes;
}

class Compiled : public ::testing::TestWithParam<Target> {
 protected:
  static void SetUpTestSuite() {
    // Kernels stay beside the build, so that only what changed is compiled again.
    setenv("TILEWISE_CACHE_DIR", KERNEL_CACHE, 1);
    for (const char* name : {"TILEWISE_BUNDLE", "TILEWISE_KEEP_SOURCE"}) unsetenv(name);
    jit::add_package_folders({PACKAGE_FOLDER});
  }
};

std::string resources_text(const jit::KernelResources& used) {
  return concat(used.registers, " + ", used.accumulation_registers, " registers, ", used.spill_bytes,
                " bytes spilled, ", used.scratch_bytes, " bytes scratch");
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return thrown.what();
  }
}

void expect_within_limits(const KernelBuild& build, int most) {
  const std::string words = concat(build.target.architecture, "\n", build.source.stub);
  ASSERT_EQ(build.error, nullptr) << message_of(build.error);
  EXPECT_GT(build.compiled->resources.registers, 0) << words;
  EXPECT_LE(bytes_out_of_registers(build), most) << resources_text(build.compiled->resources) << " on " << words;
}

TEST_P(Compiled, KernelsKeepToRegisters) {
  const jit::Target target = jit::parse_target(GetParam().architecture);
  if (const std::string reason = jit::compiler_reason(target); !reason.empty()) GTEST_SKIP() << reason;
  const DeviceTraits traits = traits_of(target.architecture);
  std::vector<KernelBuild> builds;
  for (const std::string& problem : GetParam().problems) {
    add_builds(lowered(target.architecture, concat(problem, " num_heads_q=32")), traits, target, builds);
  }
  ASSERT_GT(builds.size(), 0U);
  compile_ahead(builds);
  for (const KernelBuild& build : builds) expect_within_limits(build, most_bytes(target));
}

std::string plain(std::string_view words) { return concat(words, " seqlen_q=4096"); }
std::string causal(std::string_view words) { return concat(words, " seqlen_q=4096 mask=causal"); }
std::string every_option(std::string_view words) {
  return concat(words,
                " layout=thd max_seqlen_q=4096 batch_size=2 mask=causal window_left=256 softcap=30 alibi_slopes=[h] "
                "bias=query[b,h,q,k] sink=query dropout_p=0.1 seed_tensor=1 seqused_q=1 seqused_k=1 leftpad_k=1");
}

/// Each machine has every kernel, head_dim 64, 128 and 256, both dtypes, plain, causal and with every option; what one
/// architecture of a machine has, the others need not repeat. Compilers take 0.5 to 4 s a kernel, 13 s for the largest.
std::vector<Target> representative_kernels() {
  const std::string forward = "attention_forward dtype=bf16", backward = "attention_backward dtype=bf16";
  const std::string forward_f16 = "attention_forward dtype=f16", backward_f16 = "attention_backward dtype=f16";
  const std::string d64 = " head_dim=64", d128 = " head_dim=128", d256 = " head_dim=256";
  return {
      {"sm_80",
       {plain(forward_f16 + d64), plain(backward_f16 + d64), every_option(forward + d256),
        every_option(backward + d256 + " dlse=1 dsink=1")}},
      {"sm_90a",
       {causal(forward + d128), plain(forward + d256), causal(backward + d64), causal(backward + d128),
        plain(backward + d256 + " deterministic=1"), plain(backward + d128 + " dropout_p=0.1"),
        every_option(forward + d64), every_option(backward + d64 + " dbias=1"),
        every_option(backward + d128 + " dbias=1")}},
      {"gfx90a", {causal(forward_f16 + d128), every_option(forward_f16 + d64), causal(backward_f16 + d128)}},
      {"gfx942",
       {plain(forward + d64), causal(forward + d128), plain(forward + d256), plain(backward + d64),
        causal(backward + d128), every_option(backward + d64 + " dlse=1 dsink=1 dbias=1"),
        every_option(backward + d128 + " dbias=1"), every_option(forward + d64)}},
      {"gfx950", {causal(forward + d128), every_option(forward + d128), plain(backward + d256)}},
      {"gfx1100",
       {plain(forward_f16 + d64), causal(backward_f16 + d64), every_option(forward + d64),
        every_option(backward + d64 + " dbias=1"), every_option(backward + d256 + " dbias=1")}},
      {"gfx1102",
       {plain(forward + d64), causal(forward + d128), plain(forward + d256), plain(backward + d64),
        causal(backward + d128)}},
  };
}

std::string name_of(const ::testing::TestParamInfo<Target>& target) { return target.param.architecture; }

INSTANTIATE_TEST_SUITE_P(Representative, Compiled, ::testing::ValuesIn(representative_kernels()), name_of);

/// A kernel that says where the host puts each field.
jit::KernelSource layout_kernel(device::Machine machine) {
  std::string text = "#include \"device/common/kernel_config.h\"\n";
  for (const ParameterField& field : parameter_fields()) {
    core::append(text, concat("static_assert(__builtin_offsetof(tilewise::device::KernelParams, ", field.name,
                              ") == ", field.offset, ");\n"));
  }
  core::append(
      text, concat("static_assert(sizeof(tilewise::device::KernelParams) == ", sizeof(device::KernelParams), ");\n"));
  core::append(text,
               machine == device::kSm80 ? "extern \"C\" __global__ void" : "extern \"C\" __attribute__((global)) void");
  return {text + " layout(const tilewise::device::KernelParams) {}\n", "layout", {}};
}

class Layout : public Compiled {};

TEST_P(Layout, OfParametersIsTheHosts) {
  const jit::Target target = jit::parse_target(GetParam().architecture);
  if (const std::string reason = jit::compiler_reason(target); !reason.empty()) GTEST_SKIP() << reason;
  const jit::KernelSource source = layout_kernel(traits_of(target.architecture).machine);
  EXPECT_EQ(jit::find_or_compile(target, source)->symbol, "layout");
}

INSTANTIATE_TEST_SUITE_P(Devices, Layout, ::testing::Values(Target{"sm_80", {}}, Target{"gfx942", {}}), name_of);

}  // namespace
}  // namespace tilewise::backends::portable
