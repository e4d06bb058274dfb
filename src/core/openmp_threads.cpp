// By the functions that compilers call for a parallel region, which every OpenMP runtime has.
#include "core/openmp_threads.hpp"

#include <dlfcn.h>

#include <atomic>
#include <string>

#include "core/processors.hpp"

namespace tilewise::core {
namespace {

using Region = void (*)(void*);

/// A runtime's functions; null where no runtime is loaded.
struct Runtime {
  void (*parallel)(Region region, void* data, unsigned threads, unsigned flags) = nullptr;
  int (*thread_num)() = nullptr;

  explicit operator bool() const { return parallel != nullptr && thread_num != nullptr; }
};

Runtime functions_of(void* handle) {
  Runtime runtime;
  runtime.parallel = reinterpret_cast<decltype(runtime.parallel)>(dlsym(handle, "GOMP_parallel"));
  runtime.thread_num = reinterpret_cast<decltype(runtime.thread_num)>(dlsym(handle, "omp_get_thread_num"));
  return runtime;
}

/// The one that all of the program sees, or the first that is loaded.
Runtime find_runtime() {
  if (const Runtime runtime = functions_of(RTLD_DEFAULT)) return runtime;
  for (const std::string& path : openmp_runtimes()) {
    void* handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);  // kept: its functions are
    if (handle == nullptr) continue;
    if (const Runtime runtime = functions_of(handle)) return runtime;
  }
  return {};
}

const Runtime& the_runtime() {
  static const Runtime runtime = find_runtime();
  return runtime;
}

std::atomic<bool>& shared() noexcept {
  static constinit std::atomic<bool> shared{false};
  return shared;
}

struct Work {
  void (*work)(void* data, int worker);
  void* data;
};

}  // namespace

void share_openmp_threads(bool wanted) noexcept { shared().store(wanted && the_runtime(), std::memory_order_relaxed); }

bool openmp_threads_are_shared() noexcept { return shared().load(std::memory_order_relaxed); }

void forget_openmp_threads() noexcept { shared().store(false, std::memory_order_relaxed); }

void run_on_openmp_threads(int workers, void (*work)(void* data, int worker), void* data) {
  Work region{work, data};
  the_runtime().parallel(
      [](void* given) {
        const Work& own = *static_cast<const Work*>(given);
        own.work(own.data, the_runtime().thread_num());
      },
      &region, static_cast<unsigned>(workers), 0);
}

}  // namespace tilewise::core
