// The host's arithmetic of shared memory against the kernels' own structs: every kernel that a grid of problems lowers
// to, in one source of static assertions for the machine's compiler.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "backends/portable/attention/kernels.hpp"
#include "backends/portable/attention/lowering.hpp"
#include "backends/portable/kv_cache/kernels.hpp"
#include "backends/portable/kv_cache/lowering.hpp"
#include "core/message.hpp"
#include "gpu/architectures.hpp"
#include "jit/kernel_cache.hpp"
#include "support.hpp"
#include "tilewise/error.hpp"

namespace tilewise::backends::portable {
namespace {

using core::append, core::concat, gpu::KernelKey;

/// One for each family and each size of a block's shared memory.
constexpr std::string_view kBlocks[] = {"sm_80", "sm_86", "sm_90a", "gfx90a", "gfx950", "gfx1100", "gfx1201"};
constexpr gpu::Family kFamilies[] = {gpu::Family::sm80, gpu::Family::cdna, gpu::Family::rdna, gpu::Family::rdna4};

constexpr std::pair<int, int> kHeadDims[] = {{32, 32},   {40, 40},   {64, 64},   {96, 96},   {128, 128}, {160, 160},
                                             {192, 192}, {224, 224}, {256, 256}, {192, 128}, {256, 32},  {32, 256}};

/// What changes a block's shape: rows, heads that share a tile, what scores need, parts, and the gradients wanted.
constexpr std::string_view kForwardProblems[] = {
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=16 batch_size=8",
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=16 batch_size=8 mask_mod=kv_idx<=q_idx",
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=16 batch_size=8 softcap=3 dropout_p=0.5 bias=f32[1,1,q,k]",
    "seqlen_q=40 seqlen_k=4096 num_heads_q=16 batch_size=64",
    "seqlen_q=1 seqlen_k=8192 num_heads_q=32 num_heads_k=4",
    "seqlen_q=1 seqlen_k=8192 num_heads_q=32 num_heads_k=4 batch_invariant=1",
    "seqlen_q=1 seqlen_k=512 num_heads_q=64 num_heads_k=32 batch_size=64 alibi_slopes=[h] sink=1",
    "seqlen_q=300 seqlen_k=65536 num_heads_q=1 sink=1",
    "layout=thd batch_size=2 max_seqlen_q=500 total_q=900 total_k=900 num_heads_q=4 clear_rest=1",
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=128 num_heads_k=2 top_k=512",
};
constexpr std::string_view kKvCache[] = {
    "seqlen_q=1 num_heads_q=32 num_heads_k=8 batch_size=64 page_size=16 num_pages=99 max_pages_per_seq=99",
    "seqlen_q=64 num_heads_q=32 num_heads_k=8 capacity=4096",
    "seqlen_q=1 num_heads_q=32 num_heads_k=8 capacity=4096 cache_dtype=fp8_e4m3 scales=token",
    "seqlen_q=1 num_heads_q=32 num_heads_k=8 capacity=4096 cache_dtype=fp8_e4m3 scales=head batch_invariant=1",
    "seqlen_q=64 num_heads_q=32 num_heads_k=8 capacity=4096 cache_dtype=fp8_e4m3 scales=token",
    "seqlen_q=64 num_heads_q=32 num_heads_k=8 capacity=4096 cache_dtype=fp8_e4m3 scales=head",
    "seqlen_q=1 num_heads_q=32 num_heads_k=1 capacity=4096 cache_dtype=fp8_e4m3 scales=token top_k=64",
};
constexpr std::string_view kBackwardProblems[] = {
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=16 batch_size=8",
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=16 batch_size=8 mask_mod=kv_idx<=q_idx",
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=16 batch_size=8 deterministic=1 sink=1 dsink=1",
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=16 batch_size=8 bias=f32[1,1,q,k] dbias=1 dropout_p=0.5 seqused_k=1",
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=16 batch_size=8 dropout_p=0.5",
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=16 batch_size=8 dk=0",
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=16 batch_size=8 dv=0",
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=16 batch_size=8 dk=0 dv=0",
    "seqlen_q=65536 seqlen_k=128 num_heads_q=1",
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=128 num_heads_k=2 top_k=512",
    "seqlen_q=4096 seqlen_k=4096 num_heads_q=8 num_heads_k=2 top_k=512 softcap=3 dropout_p=0.5 bias=f32[1,1,q,k]",
};

/// Each kernel once, by its configuration.
class Kernels {
 public:
  void add(std::string_view architecture, const std::string& text) {
    const gpu::Architecture& known = gpu::named_architecture(architecture);
    const Outcome outcome = lower(problem_for(architecture, text), describe(known), known.family);
    if (!outcome.refusal.empty()) return;  // shared_memory_test.cpp says what must fit
    add(outcome.lowering);
  }
  void add_kv_cache(std::string_view architecture, const std::string& text) {
    const gpu::Architecture& known = gpu::named_architecture(architecture);
    const KvCacheProblem problem = parse_problem(concat(text, " device=", to_string(gpu::device_of(known))));
    const Outcome outcome = lower(problem, describe(known), known.family);
    if (outcome.refusal.empty()) add(outcome.lowering);
  }
  void add(const gpu::Lowering& lowering) {
    for (const gpu::Launch* launch : lowering.launches()) {
      if (std::ranges::find(keys_, launch->key) != keys_.end()) continue;
      keys_.push_back(launch->key);
    }
  }
  [[nodiscard]] const std::vector<KernelKey>& keys() const { return keys_; }

 private:
  std::vector<KernelKey> keys_;
};

/// Headers once, then a namespace for each kernel.
jit::KernelSource assertions_for(const std::vector<KernelKey>& keys) {
  std::set<std::string> headers, definitions;  // functions of scores are the same in all problems
  for (const KernelKey& key : keys) {
    definitions.insert(key.definitions);
    headers.insert(std::string(gpu::traits_of(key.family).ops_header));
    headers.insert(std::string(key.body->header));
  }
  std::string text = "#include \"device/tile/machine_host.h\"\n";
  for (const std::string& header : headers) append(text, concat("#include \"", header, "\"\n"));
  for (const std::string& definition : definitions) append(text, definition);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const gpu::KernelBody& body = *keys[i].body;
    const gpu::FamilyTraits family = gpu::traits_of(keys[i].family);
    append(text,
           concat("namespace tilewise::device::kernel_", i, " {\ninline constexpr ", body.config, " kConfig = [] {\n  ",
                  body.config, " c;\n  ", body.config_text(keys[i].config.data()), "\n  return c;\n}();\n"));
    const std::string shared =
        concat("typename ", body.kernel, "<", family.ops, "<", family.host_machine, ">, kConfig>::Shared");
    const std::uint32_t bytes = keys[i].shared_bytes();
    append(text, concat("static_assert(",
                        bytes > 0 ? concat("sizeof(", shared, ") == ", bytes)
                                  : concat("IsSame<", shared, ", NoShared>::value"),
                        ", \"", body.kernel, ": ", body.config_text(keys[i].config.data()), "\");\n}\n"));
  }
  return {text + "extern \"C\" void tilewise_shared_bytes() {}\n", "tilewise_shared_bytes", {}};
}

/// Of a compiler's message, which ends with all of its source.
std::string wrong_lines(const std::string& message) {
  std::istringstream lines(message);
  std::string wrong;
  for (std::string line; std::getline(lines, line);)
    if (line.find("error: ") != std::string::npos || line.find("the comparison") != std::string::npos)
      append(wrong, line + "\n");
  return wrong.empty() ? message : wrong;
}

TEST(SharedBytes, AreTheSizesOfTheKernelsStructs) {
  const jit::Target host{jit::TargetKind::host, "host"};
  if (const std::string reason = jit::compiler_reason(host); !reason.empty()) GTEST_SKIP() << reason;
  Kernels kernels;
  for (const std::string_view block : kBlocks) {
    for (const auto& [head_dim, head_dim_v] : kHeadDims) {
      const std::string dims = concat(" dtype=bf16 head_dim=", head_dim, " head_dim_v=", head_dim_v, " ");
      for (const std::string_view text : kForwardProblems) kernels.add(block, concat("attention_forward", dims, text));
      for (const std::string_view text : kBackwardProblems)
        kernels.add(block, concat("attention_backward", dims, text));
      for (const std::string_view text : kKvCache)
        kernels.add_kv_cache(block, concat("kv_cache_attention", dims, text));
    }
  }
  std::map<gpu::Family, std::set<std::string_view>> seen;
  for (const KernelKey& key : kernels.keys()) seen[key.family].insert(key.body->name);
  for_each_kernel([&]<typename Kernel>() {
    // The functions of their problems would be others in one source.
    if (Kernel::kName == "bwd_table_sums" || Kernel::kName == "block_states") return;
    const bool nvidia_alone = std::string_view(Kernel::kName) == "bwd" || Kernel::kName.starts_with("bwd_convert_d");
    for (const gpu::Family family : kFamilies)
      EXPECT_EQ(seen[family].contains(Kernel::kName), family == gpu::Family::sm80 || !nvidia_alone) << Kernel::kName;
  });
  for (const gpu::Family family : kFamilies)
    EXPECT_TRUE(seen[family].contains(KvCacheForward::kName) && seen[family].contains(KvCacheCombine::kName));
  RecordProperty("kernels", static_cast<int>(kernels.keys().size()));
  try {
    (void)jit::find_or_compile(host, assertions_for(kernels.keys()));
  } catch (const Error& error) {
    ADD_FAILURE() << wrong_lines(error.what());
  }
}

}  // namespace
}  // namespace tilewise::backends::portable
