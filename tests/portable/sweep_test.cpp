// `make test-compile`: the kernels of every head_dim and of each option keep to their registers on every GPU, those of
// pairs of options on AMD's. Some thousand kernels; a table says what each kernel took at worst. Targets whose compiler
// is not installed are skipped.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <tuple>

#include "compiled_kernels.hpp"
#include "register_problems.hpp"

namespace tilewise::backends::portable {
namespace {

using core::concat;

/// What the kernels of one body took at worst.
struct Worst {
  int kernels = 0, registers = 0, spilled = 0, scratch = 0;
  std::string at;  // a problem whose kernel lies furthest outside of registers, then has most of them
};

int all_registers(const jit::KernelResources& used) { return used.registers + used.accumulation_registers; }

/// Without what all problems share, decoding by that name, and a step on a KV cache by "cache".
std::string short_name(std::string problem) {
  const auto replace = [&](std::string_view words, std::string_view by) {
    if (const std::size_t at = problem.find(words); at != problem.npos) problem.replace(at, words.size(), by);
  };
  for (const std::string_view prefix : {" ", " max_"}) {
    replace(concat("forward", prefix, "seqlen_q=1 "), "decode ");
    for (const std::string_view same : {"seqlen_q=4096", "seqlen_k=4096"}) replace(concat(prefix, same), "");
  }
  for (const std::string_view same :
       {"kv_cache_attention dtype=bf16 num_heads_q=32 num_heads_k=8 cache_seqlens=1", "kv_cache_attention"}) {
    replace(same, "cache");
  }
  for (const std::string_view same : {" num_pages=4096", " num_pages=32768", " max_pages_per_seq=512"})
    replace(same, "");
  for (const std::string_view same : {"attention_", " num_heads_q=32", " dtype=bf16"}) replace(same, "");
  for (const std::string_view same : {"seqlen_k=4096", "max_seqlen_k=4096"}) replace(concat("decode ", same), "decode");
  replace(kEveryOption, "every option");
  return problem;
}

std::map<std::string_view, Worst> worst_of(const CompiledKernels& kernels) {
  std::map<std::string_view, Worst> rows;
  for (std::size_t i = 0; i < kernels.builds.size(); ++i) {
    const gpu::KernelBuild& build = kernels.builds[i];
    if (build.error) continue;
    const jit::KernelResources& used = build.compiled->resources;
    Worst& row = rows[build.key.body->name];
    ++row.kernels;
    const auto rank = [](int spilled, int scratch, int registers) {
      return std::tuple(std::max(spilled, scratch), registers);
    };
    if (rank(used.spill_bytes, used.scratch_bytes, all_registers(used)) >=
        rank(row.spilled, row.scratch, row.registers)) {
      row.at = short_name(kernels.problems[i].front());
    }
    row.registers = std::max(row.registers, all_registers(used));
    row.spilled = std::max(row.spilled, used.spill_bytes);
    row.scratch = std::max(row.scratch, used.scratch_bytes);
  }
  return rows;
}

void print_table(std::string_view architecture, const CompiledKernels& kernels) {
  std::cout << "| target | kernel | compiled | registers | spilled | scratch | worst at |\n"
               "|---|---|---:|---:|---:|---:|---|\n";
  for (const auto& [kernel, row] : worst_of(kernels)) {
    std::cout << concat("| ", architecture, " | ", kernel, " | ", row.kernels, " | ", row.registers, " | ", row.spilled,
                        " | ", row.scratch, " | ", row.at, " |\n");
  }
  std::cout << std::flush;
}

class Sweep : public ::testing::TestWithParam<std::string_view> {
 protected:
  static void SetUpTestSuite() {
    find_compilers();
    setenv("TILEWISE_CACHE_SIZE_MB", "2048", 1);  // three thousand kernels of 20 KB, so that a second run is quick
  }
};

void expect_swept(std::string_view architecture, const std::vector<std::string>& problems) {
  if (const std::string reason = jit::compiler_reason(jit::parse_target(architecture)); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const CompiledKernels kernels = compile_kernels(architecture, problems, [&](std::size_t done, std::size_t all) {
    if (done % 50 == 0) std::cerr << concat(architecture, ": ", done, " of ", all, " kernels\n");
  });
  ASSERT_GT(kernels.builds.size(), 0U);
  print_table(architecture, kernels);
  expect_within_limits(kernels);
}

TEST_P(Sweep, KernelsKeepToRegisters) { expect_swept(GetParam(), swept_problems(GetParam())); }

class PairSweep : public Sweep {
 protected:
  void SetUp() override {
    if (!has_pairs(GetParam())) GTEST_SKIP() << "pairs are AMD's";
  }
};
TEST_P(PairSweep, Forward) { expect_swept(GetParam(), paired_forward()); }
TEST_P(PairSweep, CacheSteps) { expect_swept(GetParam(), paired_kv_cache()); }
TEST_P(PairSweep, Backward) { expect_swept(GetParam(), paired_backward()); }
TEST_P(PairSweep, SparseForward) { expect_swept(GetParam(), sparse_forward()); }
TEST_P(PairSweep, SparseCacheSteps) { expect_swept(GetParam(), sparse_kv_cache()); }
TEST_P(PairSweep, SparseBackward) { expect_swept(GetParam(), sparse_backward()); }

INSTANTIATE_TEST_SUITE_P(Whole, Sweep, ::testing::ValuesIn(kSweptArchitectures),
                         [](const auto& target) { return std::string(target.param); });
INSTANTIATE_TEST_SUITE_P(Whole, PairSweep, ::testing::ValuesIn(kSweptArchitectures),
                         [](const auto& target) { return std::string(target.param); });

}  // namespace
}  // namespace tilewise::backends::portable
