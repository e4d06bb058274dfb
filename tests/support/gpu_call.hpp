// Calls on "device" memory, and made-up machine code for them, for backends whose driver only records.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "core/implementation.hpp"
#include "gpu/lowered_kernel.hpp"
#include "jit/bundle.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::test {

/// A forward call of head_dim 64 in batches of one, whose rows start on 16 bytes.
class GpuCall {
 public:
  explicit GpuCall(Device device, DType dtype = DType::bf16, std::int64_t seqlen_q = 100, std::int64_t seqlen_k = 100,
                   std::int64_t heads = 4)
      : device_(device) {
    arguments.q = tensor({1, seqlen_q, heads, 64}, dtype);
    arguments.k = tensor({1, seqlen_k, heads, 64}, dtype);
    arguments.v = tensor({1, seqlen_k, heads, 64}, dtype);
    arguments.out = tensor({1, seqlen_q, heads, 64}, dtype);
  }

  TensorView tensor(std::initializer_list<std::int64_t> shape, DType dtype) {
    TensorView view(nullptr, dtype, shape, device_);
    const std::size_t bytes = static_cast<std::size_t>(view.numel()) * size_of(dtype);
    memory_.emplace_back(bytes + 16);
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.back().data());
    view.data = memory_.back().data() + (16 - address % 16) % 16;
    return view;
  }
  TensorView lengths(std::initializer_list<std::int32_t> values) {
    const TensorView view = tensor({static_cast<std::int64_t>(values.size())}, DType::i32);
    std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(view.data));
    return view;
  }

  ForwardArguments arguments;

 private:
  Device device_;
  std::deque<std::vector<std::byte>> memory_;
};

/// A bundle in the making, of machine code that no device ran.
class MadeUpKernels {
 public:
  /// Every kernel that the first implementation to accept the problem on that device needs; each says that it uses
  /// these resources.
  template <typename Problem>
  void add(const Problem& problem, const gpu::Runtime& runtime, const jit::KernelResources& resources) {
    for (const core::Implementation* row : core::implementation_table()) {
      if (row->device() != problem.device || &row->operation() != &operation_of(&problem)) continue;
      const core::Verdict verdict = row->judge_problem(problem, runtime.description());
      if (verdict.accepted())
        return add_kernel(dynamic_cast<const gpu::LoweredKernel&>(*verdict.kernel), runtime, resources);
    }
    ADD_FAILURE() << "nobody accepts " << to_string(problem);
  }
  /// From now on this process finds them.
  void load() const {
    const std::string path = std::filesystem::temp_directory_path() / ("tilewise_made_up_" + std::to_string(getpid()));
    jit::write_bundle(path, entries_);
    jit::load_bundle(path);
    std::filesystem::remove(path);
  }

 private:
  void add_kernel(const gpu::LoweredKernel& kernel, const gpu::Runtime& runtime,
                  const jit::KernelResources& resources) {
    for (const gpu::Launch* launch : kernel.lowering().launches()) {
      const jit::KernelSource source = gpu::make_source(launch->key, /*host=*/false);
      jit::CompiledKernel compiled;
      compiled.image = {std::byte{1}, std::byte{2}};
      compiled.symbol = source.symbol;
      compiled.resources = resources;
      entries_.push_back({runtime.target(), jit::source_hash(runtime.target(), source), compiled});
    }
  }

  std::vector<jit::BundleEntry> entries_;
};

}  // namespace tilewise::test
