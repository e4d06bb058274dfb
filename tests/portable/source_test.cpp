// Generated sources: stable text, and another text for every other key.
#include <cstring>
#include <set>

#include "jit/kernel_source.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using core::concat;

constexpr std::string_view kConfigLine = "inline constexpr KernelConfig kConfig{";

/// Without the line that holds the configuration.
std::string frame(const jit::KernelSource& source) {
  std::string text = source.stub;
  const std::size_t start = text.find(kConfigLine);
  EXPECT_NE(start, std::string::npos);
  return text.erase(start, text.find('\n', start) + 1 - start);
}

Launch forward_on(std::string_view architecture) {
  return lowered(architecture, "attention_forward dtype=bf16 seqlen_q=4096 num_heads_q=64 head_dim=128").launches[0];
}

TEST(Source, OfNvidia) {
  const Launch launch = forward_on("sm_90a");
  EXPECT_EQ(frame(make_source(launch.key, device::kSm80, false)),
            concat("// Generated: one kernel, specialised on its configuration.\n"
                   "#include \"device/portable/machine_sm80.h\"\n"
                   "#include \"device/portable/ops_sm80.h\"\n"
                   "#include \"device/portable/forward.h\"\n"
                   "namespace tilewise::device {\n"
                   "using Ops = Sm80Ops<Sm80Machine>;\n"
                   "using Shared = ForwardShared<Ops, kConfig>;\n"
                   "static_assert(sizeof(Shared) == ",
                   launch.shared_bytes,
                   ", \"the host's arithmetic differs\");\n"
                   "}  // namespace tilewise::device\n"
                   "extern \"C\" __global__ void __launch_bounds__(",
                   launch.threads,
                   ") tilewise_forward(const __grid_constant__ tilewise::device::KernelParams params) {\n"
                   "  using namespace tilewise::device;\n"
                   "  extern __shared__ __align__(1024) unsigned char memory[];\n"
                   "  Shared& shared = *reinterpret_cast<Shared*>(memory);\n"
                   "  ForwardKernel<Ops, kConfig>::run(params, shared);\n"
                   "}\n"));
}

TEST(Source, OfAmd) {
  const Launch launch = forward_on("gfx942");
  EXPECT_EQ(frame(make_source(launch.key, device::kCdna, false)),
            concat("// Generated: one kernel, specialised on its configuration.\n"
                   "#pragma clang force_cuda_host_device begin\n"
                   "#include \"device/portable/machine_cdna.h\"\n"
                   "#include \"device/portable/ops_cdna.h\"\n"
                   "#include \"device/portable/forward.h\"\n"
                   "namespace tilewise::device {\n"
                   "using Ops = CdnaOps<CdnaMachine>;\n"
                   "using Shared = ForwardShared<Ops, kConfig>;\n"
                   "static_assert(sizeof(Shared) == ",
                   launch.shared_bytes,
                   ", \"the host's arithmetic differs\");\n"
                   "}  // namespace tilewise::device\n"
                   "#pragma clang force_cuda_host_device end\n"
                   "extern \"C\" __attribute__((global, amdgpu_flat_work_group_size(",
                   launch.threads, ", ", launch.threads,
                   "))) void tilewise_forward(const tilewise::device::KernelParams params) {\n"
                   "  using namespace tilewise::device;\n"
                   "  static __attribute__((shared)) Shared shared;\n"
                   "  ForwardKernel<Ops, kConfig>::run(params, shared);\n"
                   "}\n"));
}

TEST(Source, OfKernelsWithoutSharedMemory) {
  for (const device::Machine machine : {device::kSm80, device::kCdna, device::kRdna}) {
    const jit::KernelSource source = make_source({KernelKind::row_delta, {}}, machine, false);
    EXPECT_EQ(source.symbol, "tilewise_row_delta");
    EXPECT_EQ(source.stub.find("hared"), std::string::npos) << source.stub;
  }
}

/// Every byte of a configuration that tells two apart shows in the text.
TEST(Source, HasEveryFieldOfTheConfiguration) {
  const KernelKey key{KernelKind::row_delta, {}};
  std::set<std::string> texts{make_source(key, device::kSm80, false).stub};
  std::size_t different = 0;
  for (std::size_t i = 0; i < sizeof key.config; ++i) {
    KernelKey changed = key;
    auto* bytes = reinterpret_cast<unsigned char*>(&changed.config);
    bytes[i] ^= 1U;  // of a bool: the other value; of padding: nothing
    if (changed == key) continue;
    ++different;
    EXPECT_TRUE(texts.insert(make_source(changed, device::kSm80, false).stub).second) << "byte " << i;
  }
  EXPECT_GT(different, 40U);
  EXPECT_EQ(make_source(key, device::kSm80, false).stub, make_source(key, device::kSm80, false).stub);
}

TEST(Source, DiffersBetweenKindsMachinesAndTheHost) {
  std::set<std::string> texts;
  std::size_t count = 0;
  for (const device::Machine machine : {device::kSm80, device::kCdna, device::kRdna}) {
    for (int kind = 0; kind <= static_cast<int>(KernelKind::sink_gradient); ++kind) {
      for (const bool host : {false, true}) {
        texts.insert(make_source({static_cast<KernelKind>(kind), {}}, machine, host).stub);
        ++count;
      }
    }
  }
  EXPECT_EQ(texts.size(), count);
}

/// The hash covers the headers and the target: the same stub for another architecture is another kernel.
TEST(Source, HashCoversTheTarget) {
  const jit::KernelSource source = make_source(forward_on("sm_80").key, device::kSm80, false);
  EXPECT_EQ(jit::source_hash(jit::parse_target("sm_80"), source), jit::source_hash(jit::parse_target("sm_80"), source));
  EXPECT_NE(jit::source_hash(jit::parse_target("sm_80"), source),
            jit::source_hash(jit::parse_target("sm_90a"), source));
}

}  // namespace
}  // namespace tilewise::backends::portable
