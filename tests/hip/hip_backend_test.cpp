// The HIP backend against a runtime that only records, and, where Debian's libamdhip64 or another is installed,
// against the real one on a machine without its devices.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "../support/gpu_call.hpp"
#include "backends/hip/hip_backend.hpp"
#include "core/device.hpp"
#include "fake_hip.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/error.hpp"

namespace tilewise {
namespace {

fake::HipState& state() {
  static auto* const known =
      reinterpret_cast<fake::HipState* (*)()>(dlsym(dlopen(TILEWISE_FAKE_DRIVER, RTLD_NOW), "fake_hip_state"))();
  return *known;
}

/// A forward call on "device" memory.
class HipCall : public test::GpuCall {
 public:
  explicit HipCall(int device) : test::GpuCall({DeviceType::hip, device}, DType::f16) {}
};

class HipBackend : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    test::MadeUpKernels kernels;
    jit::KernelResources resources;
    resources.registers = 120;
    resources.accumulation_registers = 64;
    for (const int device : {0, 1}) {
      kernels.add(describe(HipCall(device).arguments), backends::hip_runtime(device), resources);
    }
    kernels.load();
  }
  void SetUp() override { state() = {}; }
};

std::string refusal_of(const Explanation& explained, std::string_view implementation) {
  for (const ExplainRow& row : explained.rows) {
    if (row.implementation == implementation) return row.reason;
  }
  return "not in the table";
}

TEST_F(HipBackend, LaunchesOnEachFamily) {
  for (const int device : {0, 1}) {
    HipCall call(device);
    attention_forward(call.arguments, {}, reinterpret_cast<void*>(9));
    ASSERT_FALSE(state().launches.empty());
    const fake::HipLaunch& launch = state().launches.back();
    EXPECT_EQ(launch.device, device);
    EXPECT_EQ(launch.threads % (device == 0 ? 64 : 32), 0u);
    EXPECT_EQ(launch.stream, reinterpret_cast<void*>(9));
    EXPECT_EQ(launch.params<device::ForwardParams>().v.data, call.arguments.v.data);
    EXPECT_EQ(state().current, 0) << "the thread's device is left as it was";
  }
}

TEST_F(HipBackend, ChoosesTheFamilyOfTheDevice) {
  state().current = 1;
  const Plan planned = plan(describe(HipCall(1).arguments));
  EXPECT_EQ(planned.implementation(), "hip.rdna");
  EXPECT_NE(planned.schedule().find("120 registers + 64 accumulation"), std::string::npos) << planned.schedule();
  EXPECT_EQ(refusal_of(explain(describe(HipCall(1).arguments)), "hip.cdna"),
            "the GPU must be one of AMD's CDNA (got gfx1100)");
}

TEST_F(HipBackend, RefusesAnUnknownArchitecture) {
  try {
    attention_forward(HipCall(2).arguments);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("hip.cdna: hip:2: gfx1030 is not supported: its generation has no matrix instructions"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(HipBackend, NamesWhatTheRuntimeSays) {
  HipCall call(0);
  state().launch_result = 400;
  try {
    attention_forward(call.arguments);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "stream: must be a stream of hip:0, where the tensors are (got one that hipModuleLaunchKernel "
                 "refuses: hipErrorInvalidHandle (as the runtime puts it))");
  }
}

/// The last device is one that no kernel is for.
TEST_F(HipBackend, UsesTheMemoryOfAnyDevice) {
  const core::DeviceSystem& system = backends::hip_system();
  const std::array<std::uint32_t, 3> source{1, 2, 3};
  std::array<std::uint32_t, 3> copy{};
  auto* memory = static_cast<std::uint32_t*>(system.allocate(2, sizeof source));
  system.copy_to_device(2, memory, source.data(), sizeof source, nullptr);
  system.fill(2, memory + 1, 7, sizeof *memory, nullptr);
  system.fill(2, memory + 2, 0, 1, nullptr);
  system.copy_to_host(2, copy.data(), memory, sizeof copy, nullptr);
  EXPECT_EQ(copy, (std::array<std::uint32_t, 3>{1, 7, 0}));
  EXPECT_FALSE(system.is_capturing(2, nullptr)) << "the fake is older than graphs";
  system.free(2, memory);
  EXPECT_EQ(state().current, 0);
}

const std::string kProblem = "attention_forward device=hip dtype=bf16 seqlen_q=8 head_dim=64";

/// In a process of its own, where no runtime is open yet. Exits with 0 if the reason begins and ends as expected.
void expect_refusal(const char* variable, const char* value, const std::string& beginning) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv(variable, value, 1);
        const std::string reason = refusal_of(explain(parse_problem(kProblem)), "hip.cdna");
        if (!reason.starts_with(beginning)) fprintf(stderr, "%s\n", reason.c_str());
        std::_Exit(reason.starts_with(beginning) ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(HipBackendAlone, WithoutADevice) {
  expect_refusal("FAKE_HIP_EMPTY", "1", "HIP has no device here (hipInit: hipErrorNoDevice)");
}

TEST(HipBackendAlone, WithoutALibrary) {
  expect_refusal("TILEWISE_HIP_DRIVER", "/nowhere/libamdhip64.so", "/nowhere/libamdhip64.so: ");
}

/// Every function of the table is in the real library, and a machine without its devices is refused in its words.
TEST(HipBackendAlone, RealLibrary) {
  const char* named = std::getenv("TILEWISE_TEST_AMDHIP");
  std::string path = named != nullptr ? named : "";
  for (const char* candidate : {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}) {
    if (path.empty() && dlopen(candidate, RTLD_LAZY) != nullptr) path = candidate;
  }
  if (path.empty()) GTEST_SKIP() << "libamdhip64 is not installed; TILEWISE_TEST_AMDHIP names one elsewhere";
  if (std::filesystem::exists("/dev/kfd")) GTEST_SKIP() << "an AMD GPU is here";
  expect_refusal("TILEWISE_HIP_DRIVER", path.c_str(), "HIP has no device here (hipInit: hipError");
}

}  // namespace
}  // namespace tilewise

int main(int argc, char** argv) {
  setenv("TILEWISE_HIP_DRIVER", TILEWISE_FAKE_DRIVER, 1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
