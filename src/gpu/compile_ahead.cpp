// A queue of kernels and the threads that wait for their compilers.
#include "gpu/compile_ahead.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "jit/kernel_cache.hpp"

namespace tilewise::gpu {

void add_builds(std::span<const Launch* const> launches, const jit::Target& target, std::vector<KernelBuild>& builds) {
  const bool host = target.kind == jit::TargetKind::host;
  for (const Launch* launch : launches) {
    const bool known = std::ranges::any_of(
        builds, [&](const KernelBuild& build) { return build.key == launch->key && build.target == target; });
    if (!known) builds.push_back({launch->key, target, make_source(launch->key, host)});
  }
}

void compile_ahead(std::span<KernelBuild> builds, const std::function<void(std::size_t)>& done) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::size_t finished = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < builds.size(); i = next++) {
      KernelBuild& build = builds[i];
      try {
        build.compiled = jit::find_or_compile(build.target, build.source);
      } catch (...) {
        build.error = std::current_exception();
      }
      const std::lock_guard guard(mutex);
      ++finished;
      if (done) done(finished);
    }
  };
  const auto processors = std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < std::min(processors, builds.size()); ++i) threads.emplace_back(work);
  work();
}

}  // namespace tilewise::gpu
