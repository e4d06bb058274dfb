// NVRTC and hipRTC in their process: a stand-in that aborts, hangs and fails; and the real ones where they are
// installed.
#include "jit/compiler_steps.hpp"
#include "jit/search_paths.hpp"
#include "support.hpp"

namespace tilewise::jit {
namespace {

const KernelSource kKernel{"#include \"device/common/mask.h\"\nextern \"C\" void k() {}\n", "k", {"--extra"}};

class RuntimeCompilers : public JitTest {
 protected:
  RuntimeCompilers() {
    set_variable("TILEWISE_CLANG", "none");
    set_variable("TILEWISE_HIPRTC", FAKE_RUNTIME_COMPILER);
    set_variable("TILEWISE_NVRTC", FAKE_RUNTIME_COMPILER);
  }
  static std::string failure(const char* architecture) {
    return error_of(ErrorCode::runtime, [&] { (void)find_or_compile(parse_target(architecture), kKernel); });
  }
  static void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
  }
};

TEST_F(RuntimeCompilers, GetSourcesHeadersAndOptions) {
  const auto kernel = find_or_compile(parse_target("sm_80"), kKernel);
  EXPECT_EQ(kernel->compiler, "nvrtc 12.3");
  const std::string image(reinterpret_cast<const char*>(kernel->image.data()), kernel->image.size());
  expect_parts(image, {"--gpu-architecture=sm_80", "--std=c++20", "-default-device", "--ptxas-options=-v", "--extra",
                       "device/common/mask.h", "device/common/params.h", "stdint.h", kKernel.stub});
  EXPECT_EQ(kernel->resources, (KernelResources{77, 0, 1024, 40, 48, 0}));
  expect_parts(kernel->log, {"words on standard output"});  // which do not get into the reply
}

TEST_F(RuntimeCompilers, AbortIsAnErrorHere) {
  EXPECT_EQ(compiler_name(parse_target("gfx942")), "hiprtc 12.3");
  expect_parts(failure("gfx942"), {"compiling k for HIP gfx942 with hiprtc 12.3", "ended by signal 6 (Aborted)",
                                   "words on standard output", "stub:\n  1 | #include"});
  expect_parts(failure("sm_86"), {"nvrtc ended by signal 6"});
}

TEST_F(RuntimeCompilers, HangingIsAnErrorHere) {
  set_variable("TILEWISE_COMPILE_TIMEOUT", "0.5");
  expect_parts(failure("gfx1100"), {"hiprtc stopped after"});
}

TEST_F(RuntimeCompilers, ErrorsComeWithTheLog) {
  expect_parts(failure("gfx90a"), {"FAKE_ERROR_COMPILATION", "stub.hip(2): error: no such thing",
                                   "at stub.hip:2: extern \"C\" void k() {}"});
  expect_parts(failure("gfx950"), {"the compiler's output can't be used: not an ELF file"});
}

TEST_F(RuntimeCompilers, VersionIsPartOfTheKey) {
  (void)find_or_compile(parse_target("sm_80"), kKernel);
  EXPECT_EQ(kernel_files().size(), 1U);
  forget_kernels();
  std::filesystem::remove_all(cache() / "answers");  // the file is the same, so its version would be remembered
  set_variable("FAKE_RUNTIME_COMPILER_VERSION", "12.4");
  EXPECT_EQ(find_or_compile(parse_target("sm_80"), kKernel)->compiler, "nvrtc 12.4");
  EXPECT_EQ(kernel_files().size(), 2U);
}

TEST_F(RuntimeCompilers, WhatIsNoCompilerIsAReason) {
  set_variable("TILEWISE_NVRTC", FAKE_DRIVER);
  expect_parts(compiler_reason(parse_target("sm_80")), {FAKE_DRIVER, "function nvrtcVersion is missing"});
  set_variable("TILEWISE_NVRTC", folder().string());
  expect_parts(compiler_reason(parse_target("sm_80")),
               {"NVRTC (libnvrtc.so) not found in " + folder().string(), "pip install nvidia-cuda-nvrtc"});
  write(folder() / "libnvrtc.so.12", "no library");
  forget_kernels();
  expect_parts(compiler_reason(parse_target("sm_80")), {"libnvrtc.so.12"});
  set_variable("TILEWISE_COMPILER", "/no/such/program");
  expect_parts(compiler_reason(parse_target("sm_80")),
               {"TILEWISE_COMPILER: must name a program (got '/no/such/program')"});
  set_variable("TILEWISE_COMPILER", "/bin/true");
  set_variable("TILEWISE_NVRTC", FAKE_RUNTIME_COMPILER);
  expect_parts(compiler_reason(parse_target("sm_80")), {"nvrtc process gave no answer"});
}

TEST_F(RuntimeCompilers, CompilerProcessIsFoundInTheBuildFolder) {
  set_variable("TILEWISE_COMPILER", "");
  EXPECT_EQ(compiler_reason(parse_target("sm_80")), "");
}

TEST_F(RuntimeCompilers, LibrariesAreFoundInAFolder) {
  std::filesystem::create_directory_symlink(FAKE_RUNTIME_COMPILER, folder() / "libnvrtc.so.12");
  write(folder() / "libnvrtc-builtins.so.12.3", "never opened by the stand-in, and no library");
  set_variable("TILEWISE_NVRTC", folder().string());
  EXPECT_EQ(compiler_name(parse_target("sm_90a")), "nvrtc 12.3");
}

TEST(ChooseNvrtc, GoesByTheDriver) {
  using Versions = std::vector<Version>;
  const auto chosen = [](const Versions& versions, Version driver) {
    const auto index = choose_nvrtc(versions, driver);
    return index ? versions[*index] : Version{};
  };
  const Versions all{{12, 9}, {13, 5}, {13, 0}, {14, 1}, {}};
  EXPECT_EQ(chosen(all, {}), (Version{14, 1})) << "no driver to please";
  EXPECT_EQ(chosen(all, {13, 0}), (Version{13, 0})) << "known whole";
  EXPECT_EQ(chosen(all, {13, 2}), (Version{13, 0}));
  EXPECT_EQ(chosen({{13, 5}, {13, 3}, {14, 1}}, {13, 0}), (Version{13, 5})) << "of its major version";
  EXPECT_EQ(chosen({{13, 5}, {14, 1}}, {12, 9}), Version{}) << "newer than the driver";
  EXPECT_EQ(chosen({{}}, {}), Version{}) << "one that did not tell its version";
  EXPECT_EQ(choose_nvrtc(Versions{{13, 0}, {13, 0}}, {13, 0}), 0U) << "the one found first";
}

/// A kernel in the device headers' own style: standard integers, templates and constant functions without annotations.
constexpr const char* kRealStub =
    "#include <stdint.h>\n"
    "#include \"device/common/philox.h\"\n"
    "template <typename T> constexpr T twice(T x) { return 2 * x; }\n"
    "extern \"C\" __global__ void scale(float* data, int64_t count) {\n"
    "  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;\n"
    "  if (i < count) data[i] = twice(data[i]);\n}\n";

class RealRuntimeCompilers : public JitTest {
 protected:
  RealRuntimeCompilers() { add_package_folders({PACKAGE_FOLDER}); }
};

TEST_F(RealRuntimeCompilers, NvrtcCompilesForAmpereAndHopper) {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    const Target target = parse_target(architecture);
    if (const std::string reason = compiler_reason(target); !reason.empty()) GTEST_SKIP() << reason;
    const auto kernel = find_or_compile(target, {kRealStub, "scale", {}});
    EXPECT_EQ(kernel->compiler.substr(0, 6), "nvrtc ");
    EXPECT_GT(kernel->resources.registers, 0);
    ASSERT_GT(kernel->image.size(), 4U);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(kernel->image.data()), 4),
              "\x7f"
              "ELF");
  }
}

TEST_F(RealRuntimeCompilers, NvrtcErrorShowsTheLine) {
  const Target target = parse_target("sm_80");
  if (const std::string reason = compiler_reason(target); !reason.empty()) GTEST_SKIP() << reason;
  const std::string message = error_of(ErrorCode::runtime, [&] {
    (void)find_or_compile(target, {"extern \"C\" __global__ void k(float* p) {\n  *p = nothing;\n}\n", "k", {}});
  });
  EXPECT_NE(message.find("  *p = nothing;"), std::string::npos) << message;
  EXPECT_NE(message.find("stub.cu(2): error"), std::string::npos) << message;
}

TEST_F(RealRuntimeCompilers, HiprtcCompilesOrItsCrashIsTold) {
  set_variable("TILEWISE_CLANG", "none");
  const Target target = parse_target("gfx942");
  if (const std::string reason = compiler_reason(target); !reason.empty()) GTEST_SKIP() << reason;
  try {
    const auto kernel = find_or_compile(target, {kRealStub, "scale", {}});
    EXPECT_GT(kernel->resources.registers, 0);
  } catch (const Error& error) {  // the hipRTC of ROCm 5.2 aborts for this architecture
    EXPECT_EQ(error.code(), ErrorCode::runtime);
    EXPECT_NE(std::string(error.what()).find("compiling scale for HIP gfx942 with hiprtc"), std::string::npos);
  }
}

}  // namespace
}  // namespace tilewise::jit
