// launch.json tells all that a launch takes: its text alone, read back, runs forward and backward passes on the
// emulated machines, with results near the reference's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../../tools/launch_json.hpp"
#include "../support/dense_call.hpp"
#include "backends/emulation/runtime.hpp"
#include "backends/portable/attention/lowering.hpp"
#include "jit/kernel_cache.hpp"

namespace tilewise::test {
namespace {

using Json = nlohmann::json;

/// What `tilewise compile` would write for a family's emulated machine, and the kernels that it speaks of.
struct Compiled {
  Json report;
  std::map<std::string, std::shared_ptr<const gpu::LoadedKernel>> kernels;  ///< by file
  std::map<std::string, gpu::KernelKey> keys;
};

Compiled compile(const Problem& problem, gpu::Family family) {
  const gpu::Runtime& runtime = backends::emulation::runtime_of(family)(0);
  backends::portable::Outcome outcome = backends::portable::lower(problem, runtime.description(), family);
  EXPECT_EQ(outcome.refusal, "");
  tools::LoweredProblem lowered{problem, "emulation", std::move(outcome.lowering),
                                backends::portable::contiguous_call(problem)};
  std::vector<gpu::KernelBuild> builds;
  gpu::add_builds(lowered.lowering.launches(), runtime.target(), builds);
  gpu::compile_ahead(builds);
  const std::vector<tools::NamedKernel> named = tools::name_kernels(builds);
  Compiled compiled;
  compiled.report = Json::parse(tools::launch_json(runtime.description(), named, {&lowered, 1}).dump());
  for (const tools::NamedKernel& kernel : named) {
    EXPECT_EQ(kernel.build->error, nullptr);
    compiled.kernels[kernel.file] = runtime.load(*kernel.build->compiled, 0);
    compiled.keys[kernel.file] = kernel.build->key;
  }
  return compiled;
}

template <typename Number>
void put(std::vector<std::byte>& block, const Json& field, Number number) {
  std::memcpy(block.data() + field["offset"].get<std::size_t>(), &number, sizeof number);
}

/// The block that the file describes: its values, tensors by name and the workspace.
std::vector<std::byte> pack(const Json& parameters, const Json& step, const std::map<std::string, void*>& tensors,
                            std::byte* workspace) {
  std::vector<std::byte> block(parameters["size"].get<std::size_t>());
  const Json &values = step["values_of_contiguous_tensors"], &pointers = step["pointers"];
  for (const Json& field : parameters["fields"]) {
    const auto name = field["name"].get<std::string>(), type = field["type"].get<std::string>();
    if (type.ends_with('*')) {
      const std::byte* address = nullptr;
      if (pointers["workspace"].contains(name)) address = workspace + pointers["workspace"][name].get<std::size_t>();
      if (pointers["tensors"].contains(name)) {
        const auto tensor = tensors.find(pointers["tensors"][name].get<std::string>());
        if (tensor != tensors.end()) address = static_cast<const std::byte*>(tensor->second);
      }
      put(block, field, address);
    } else if (type == "float") {
      put(block, field, values[name].get<float>());
    } else if (field["size"] == 4) {
      put(block, field, values[name].get<std::int32_t>());
    } else {
      put(block, field, values[name].get<std::int64_t>());
    }
  }
  return block;
}

void run_file(const Compiled& compiled, gpu::Family family, const std::map<std::string, void*>& tensors) {
  const gpu::Runtime& runtime = backends::emulation::runtime_of(family)(0);
  const Json& problem = compiled.report["problems"][0];
  std::map<std::string, Json> parameters;
  for (const Json& kernel : compiled.report["kernels"]) parameters[kernel["file"]] = kernel["parameters"];
  constexpr std::size_t kAlignment = 256;
  ASSERT_EQ(problem["workspace"]["alignment"], kAlignment);
  // What nobody wrote reads as NaN.
  std::vector<std::byte> memory(problem["workspace"]["size"].get<std::size_t>() + kAlignment, std::byte{0xFF});
  const auto past = reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment;
  std::byte* const workspace = memory.data() + (kAlignment - past) % kAlignment;
  for (const Json& step : problem["steps"]) {
    const auto file = step["file"].get<std::string>();
    const std::vector<std::byte> block = pack(parameters[file], step, tensors, workspace);
    gpu::Launch launch;
    launch.key = compiled.keys.at(file);
    launch.grid.x = step["grid"][0].get<std::uint32_t>();
    EXPECT_EQ(step["block"][0].get<std::uint32_t>(), launch.threads());
    runtime.launch(*compiled.kernels.at(file), launch, block.data(), nullptr);
  }
}

void expect_near(const Tensor& actual, const Tensor& expected, std::string_view name) {
  const std::vector<double> a = actual.values(), e = expected.values();
  double largest = 1.0;
  for (const double value : e) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < e.size(); ++i) ASSERT_NEAR(a[i], e[i], 2e-2 * largest) << name << "[" << i << "]";
}

class LaunchJson : public testing::TestWithParam<gpu::Family> {};

TEST_P(LaunchJson, RunsAForwardPassThatIsSplit) {
  DenseCall call(
      {.seqlen_q = 1, .seqlen_k = 700, .heads_q = 2, .heads_k = 1, .dim = 64, .dim_v = 64, .dtype = DType::bf16});
  const Compiled compiled = compile(describe(call.forward_arguments()), GetParam());
  ASSERT_GT(compiled.report["problems"][0]["steps"].size(), 1U) << "keys are split";
  run_file(compiled, GetParam(),
           {{"q", call.q.view().data},
            {"k", call.k.view().data},
            {"v", call.v.view().data},
            {"out", call.out.view().data},
            {"softmax_lse", call.lse.view().data}});
  const Tensor out = call.out, lse = call.lse;
  call.out = Tensor(DType::bf16, {1, 1, 2, 64});
  call.lse = Tensor(DType::f32, {1, 2, 1});
  call.forward();
  expect_near(out, call.out, "out");
  expect_near(lse, call.lse, "softmax_lse");
}

TEST_P(LaunchJson, NamesTablesOfFunctions) {
  DenseCall call(
      {.seqlen_q = 70, .seqlen_k = 90, .heads_q = 2, .heads_k = 2, .dim = 32, .dim_v = 32, .dtype = DType::bf16});
  Tensor slopes(DType::f32, {2}), documents(DType::i32, {1, 90});
  slopes.fill_with([](std::span<const std::int64_t> at) { return 0.25 + static_cast<double>(at[0]); });
  documents.fill_with([](std::span<const std::int64_t> at) { return static_cast<double>(at[1] / 40); });
  call.options.score_mod = "score - table0[h] * abs(q_idx - kv_idx)";
  call.options.mask_mod = "table1[b, q_idx] == table1[b, kv_idx]";
  call.options.tables = {slopes.view(), documents.view()};
  const Compiled compiled = compile(describe(call.forward_arguments()), GetParam());
  run_file(compiled, GetParam(),
           {{"q", call.q.view().data},
            {"k", call.k.view().data},
            {"v", call.v.view().data},
            {"out", call.out.view().data},
            {"softmax_lse", call.lse.view().data},
            {"table0", slopes.view().data},
            {"table1", documents.view().data}});
  const Tensor out = call.out;
  call.out = Tensor(DType::bf16, {1, 70, 2, 32});
  call.forward();
  expect_near(out, call.out, "out");
}

/// Queries are many and keys few, so that every part of the workspace is there where one kernel computes all gradients.
TEST_P(LaunchJson, RunsABackwardPass) {
  DenseCall call(
      {.seqlen_q = 600, .seqlen_k = 40, .heads_q = 2, .heads_k = 1, .dim = 64, .dim_v = 64, .dtype = DType::bf16});
  call.forward();
  call.prepare_backward();
  const Compiled compiled = compile(describe(call.backward_arguments()), GetParam());
  if (GetParam() == gpu::Family::sm80) {
    EXPECT_EQ(compiled.report["problems"][0]["workspace"]["parts"].size(), 4U) << "delta, dq_accum, dk_accum, dv_accum";
  }
  run_file(compiled, GetParam(),
           {{"q", call.q.view().data},
            {"k", call.k.view().data},
            {"v", call.v.view().data},
            {"out", call.out.view().data},
            {"softmax_lse", call.lse.view().data},
            {"dout", call.dout.view().data},
            {"dq", call.dq.view().data},
            {"dk", call.dk.view().data},
            {"dv", call.dv.view().data}});
  const Tensor dq = call.dq, dk = call.dk, dv = call.dv;
  const Tensor dout = call.dout;
  call.prepare_backward();
  call.dout = dout;
  call.backward();
  expect_near(dq, call.dq, "dq");
  expect_near(dk, call.dk, "dk");
  expect_near(dv, call.dv, "dv");
}

INSTANTIATE_TEST_SUITE_P(Families, LaunchJson, testing::Values(gpu::Family::sm80, gpu::Family::cdna, gpu::Family::rdna),
                         [](const auto& info) {
                           const std::string name(backends::emulation::name_of(info.param));
                           return name.substr(name.find('.') + 1);
                         });

}  // namespace
}  // namespace tilewise::test
