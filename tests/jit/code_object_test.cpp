// Resources read from real code objects where their compilers are installed, and from bytes that are none.
#include "jit/code_object.hpp"

#include <gtest/gtest.h>

#include <random>

#include "jit/search_paths.hpp"
#include "support.hpp"

namespace tilewise::jit {
namespace {

class CodeObject : public JitTest {
 protected:
  CodeObject() { add_package_folders({PACKAGE_FOLDER}); }
};

/// Uses shared memory, bounds its block and indexes a private array, which takes scratch.
KernelSource greedy_kernel(const std::string& global, const std::string& shared, const std::string& bounds) {
  return {global + bounds + " void greedy(float* data, int n) {\n" + "  " + shared +
              " float tile[256];\n  float own[64];\n"
              "  for (int i = 0; i < 64; ++i) own[i] = data[i * n];\n"
              "  tile[n % 256] = own[n % 64];\n"
              "  for (int i = 0; i < 64; ++i) own[(i * n) % 64] += tile[i];\n"
              "  for (int i = 0; i < n; ++i) data[i] = own[data[i] > 0 ? i % 64 : 3];\n}\n",
          "greedy",
          {}};
}

const KernelSource kAmdKernel = greedy_kernel("extern \"C\" __attribute__((global)) ", "__attribute__((shared))",
                                              "__attribute__((amdgpu_flat_work_group_size(1, 128)))");
const KernelSource kNvidiaKernel = greedy_kernel("extern \"C\" __global__ ", "__shared__", "__launch_bounds__(128)");

TEST_F(CodeObject, ReadsAmdMetadata) {
  set_variable("TILEWISE_HIPRTC", "/no/such/library");
  for (const char* architecture : {"gfx90a", "gfx942", "gfx1100"}) {
    const Target target = parse_target(architecture);
    if (const std::string reason = compiler_reason(target); !reason.empty()) GTEST_SKIP() << reason;
    const auto kernel = find_or_compile(target, kAmdKernel);
    const KernelResources& used = kernel->resources;
    EXPECT_GT(used.registers, 0) << architecture;
    EXPECT_EQ(used.accumulation_registers, 0);
    EXPECT_EQ(used.static_shared_bytes, 1024);
    EXPECT_GE(used.scratch_bytes, 256);
    EXPECT_EQ(used.max_threads, 128);

    std::string fault;
    EXPECT_FALSE(amd_resources(kernel->image, "other", fault));
    EXPECT_EQ(fault, "no kernel 'other'");
  }
}

TEST_F(CodeObject, CountsAccumulationRegisters) {
  const Target target = parse_target("gfx942");
  if (const std::string reason = compiler_reason(target); !reason.empty()) GTEST_SKIP() << reason;
  const KernelSource source{
      "extern \"C\" __attribute__((global)) void accumulate(float* data) {\n"
      "  float value = data[0];\n"
      "  __asm__ volatile(\"v_accvgpr_write_b32 a7, %0\" : : \"v\"(value) : \"a7\");\n"
      "  data[1] = value;\n}\n",
      "accumulate",
      {}};
  const KernelResources used = find_or_compile(target, source)->resources;
  EXPECT_EQ(used.accumulation_registers, 8);
  EXPECT_GT(used.registers, 0);
}

TEST_F(CodeObject, ReadsNvidiaLogAndBounds) {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    const Target target = parse_target(architecture);
    if (const std::string reason = compiler_reason(target); !reason.empty()) GTEST_SKIP() << reason;
    const auto kernel = find_or_compile(target, kNvidiaKernel);
    const KernelResources& used = kernel->resources;
    EXPECT_GT(used.registers, 0) << architecture << kernel->log;
    EXPECT_EQ(used.static_shared_bytes, 1024) << kernel->log;
    EXPECT_GE(used.scratch_bytes, 256) << kernel->log;
    EXPECT_EQ(used.spill_bytes, 0) << kernel->log;
    EXPECT_EQ(used.max_threads, 128) << kernel->log;
  }
}

TEST_F(CodeObject, TakesAlteredObjects) {
  const Target target = parse_target("gfx942");
  if (const std::string reason = compiler_reason(target); !reason.empty()) GTEST_SKIP() << reason;
  const auto kernel = find_or_compile(target, kAmdKernel);
  std::string fault;
  std::size_t refused = 0, tried = 0;
  for (std::size_t size = 0; size < kernel->image.size(); size += 61, ++tried) {
    refused += amd_resources(std::span(kernel->image).first(size), "greedy", fault) ? 0 : 1;
  }
  EXPECT_EQ(refused, tried) << "the section headers come last, so that nothing cut has any";
  std::mt19937 random(11);
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::byte> image = kernel->image;
    for (int flips = 0; flips < 8; ++flips)
      image[random() % image.size()] ^= static_cast<std::byte>(1U << random() % 8);
    (void)amd_resources(image, "greedy", fault);
    (void)nvidia_resources(image, "", "greedy");
  }
}

TEST(NvidiaLog, IsReadForTheKernelAsked) {
  constexpr std::string_view kLog =
      "ptxas info    : Compiling entry function 'first' for 'sm_90a'\n"
      "    8 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 2048 bytes smem\n"
      "ptxas info    : Compiling entry function 'second' for 'sm_90a'\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 40 registers, used 0 barriers\n";
  EXPECT_EQ(nvidia_resources({}, kLog, "first"), (KernelResources{255, 0, 2048, 8, 8, 0}));
  EXPECT_EQ(nvidia_resources({}, kLog, "second"), (KernelResources{40, 0, 0, 0, 0, 0}));
  EXPECT_EQ(nvidia_resources({}, "", "first"), KernelResources{});
}

TEST(AmdMetadata, TellsWhatBytesAreNot) {
  std::string fault;
  EXPECT_FALSE(amd_resources({}, "k", fault));
  EXPECT_EQ(fault, "not an ELF file");
  EXPECT_FALSE(amd_resources(as_bytes("\x7f"
                                      "ELF, or so it begins"),
                             "k", fault));
  EXPECT_EQ(fault, "not an ELF file");
  const auto program = read_file("/proc/self/exe");  // ELF, but none of AMD's
  ASSERT_TRUE(program);
  EXPECT_FALSE(amd_resources(*program, "k", fault));
  EXPECT_EQ(fault, "no metadata of kernels");
}

}  // namespace
}  // namespace tilewise::jit
