// The kernels of problems, compiled by real compilers, and what of them lies outside of registers.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/compile_ahead.hpp"
#include "jit/kernel_cache.hpp"
#include "jit/search_paths.hpp"
#include "lowerings.hpp"
#include "machine_code.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {

/// Those of this build and of its Python environment, and no kernels from elsewhere.
inline void find_compilers() {
  for (const char* name : {"TILEWISE_BUNDLE", "TILEWISE_KEEP_SOURCE"}) unsetenv(name);
  jit::add_package_folders({PACKAGE_FOLDER});
}

/// The kernels of an architecture's problems, each once, and the problems that need it.
struct CompiledKernels {
  std::vector<gpu::KernelBuild> builds;
  std::vector<std::vector<std::string>> problems;  // of each build
};

inline CompiledKernels compile_kernels(std::string_view architecture, std::span<const std::string> problems,
                                       const std::function<void(std::size_t, std::size_t)>& done = {}) {
  const jit::Target target = jit::parse_target(architecture);
  CompiledKernels kernels;
  for (const std::string& problem : problems) {
    for (const gpu::Lowering& lowering : lowerings_of(architecture, problem)) {
      gpu::add_builds(lowering.launches(), target, kernels.builds);
      kernels.problems.resize(kernels.builds.size());
      for (const gpu::Launch* launch : lowering.launches()) {
        const auto found = std::ranges::find(kernels.builds, launch->key, &gpu::KernelBuild::key);
        std::vector<std::string>& users = kernels.problems[static_cast<std::size_t>(found - kernels.builds.begin())];
        if (users.empty() || users.back() != problem) users.push_back(problem);
      }
    }
  }
  const std::size_t all = kernels.builds.size();
  gpu::compile_ahead(kernels.builds, [&](std::size_t finished) {
    if (done) done(finished, all);
  });
  return kernels;
}

/// Bytes that each lane may store because registers ran out: on NVIDIA's those that ptxas spills, on AMD's any scratch.
inline int most_bytes(const jit::Target& target) { return target.kind == jit::TargetKind::cuda ? 80 : 0; }

/// What LLVM has moved to accumulation registers, or scalars to lanes of vector registers, leaves its place in scratch
/// reserved, which no instruction touches: machine_code.hpp looks for those that do.
inline int bytes_out_of_registers(const gpu::KernelBuild& build, bool is_disassembled) {
  const jit::KernelResources& used = build.compiled->resources;
  if (build.target.kind == jit::TargetKind::cuda) return used.spill_bytes;
  return is_disassembled ? 0 : used.scratch_bytes;
}

inline std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return thrown.what();
  }
}

inline std::string resources_text(const jit::KernelResources& used) {
  return core::concat(used.registers, " + ", used.accumulation_registers, " registers, ", used.spill_bytes,
                      " bytes spilled, ", used.scratch_bytes, " bytes scratch");
}

/// One failure for each kernel that does not compile, passes the limit, or does what an AMD kernel must not, with the
/// problem that repeats it.
inline void expect_within_limits(const CompiledKernels& kernels) {
  const std::string program = disassembler();
  for (std::size_t i = 0; i < kernels.builds.size(); ++i) {
    const gpu::KernelBuild& build = kernels.builds[i];
    const std::vector<std::string>& problems = kernels.problems[i];
    const std::string words = core::concat(
        build.key.body->name, ", which ", problems.size(), problems.size() == 1 ? " problem needs" : " problems need",
        ": tilewise compile --target ", build.target.architecture, " --problem ", problems.front());
    if (build.error) {
      ADD_FAILURE() << words << '\n' << message_of(build.error);
      continue;
    }
    EXPECT_GT(build.compiled->resources.registers, 0) << words;
    EXPECT_LE(bytes_out_of_registers(build, !program.empty()), most_bytes(build.target))
        << resources_text(build.compiled->resources) << " of " << words;
    if (build.target.kind == jit::TargetKind::hip && !program.empty()) {
      EXPECT_EQ(unwanted_instruction(program, *build.compiled), "") << words;
    }
  }
}

}  // namespace tilewise::backends::portable
