// Kernels compiled for a device that need not be here: ahead of time, many side by side.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/visibility.hpp"
#include "gpu/lowering.hpp"
#include "jit/compiled_kernel.hpp"
#include "jit/target.hpp"

namespace tilewise::gpu {

/// A kernel to be compiled or found, and what came of it: `compiled` or `error`.
struct KernelBuild {
  KernelKey key;
  jit::Target target;
  jit::KernelSource source;
  std::shared_ptr<const jit::CompiledKernel> compiled{};
  std::exception_ptr error{};
};

/// Adds the kernels of launches that `builds` does not have yet.
TILEWISE_INTERNAL void add_builds(std::span<const Launch* const> launches, const jit::Target& target,
                                  std::vector<KernelBuild>& builds);

/// Compiles or finds them all, as many at a time as there are processors; `done` is called after each with their
/// number, never by two threads at once.
TILEWISE_INTERNAL void compile_ahead(std::span<KernelBuild> builds, const std::function<void(std::size_t)>& done = {});

}  // namespace tilewise::gpu
