// The process's processors. OpenMP binds the thread that loads it to one place and leaves the process's own set
// nowhere, so its runtimes are asked for their places, by OpenMP's own functions.
#include "core/processors.hpp"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tilewise::core {
namespace {

/// That a thread may run on; empty where the system refuses.
cpu_set_t processors_of(pid_t thread) {
  cpu_set_t set;
  if (sched_getaffinity(thread, sizeof set, &set) != 0) CPU_ZERO(&set);
  return set;
}

/// Adds the places of a runtime to `set`.
void add_places(void* runtime, cpu_set_t& set) {
  const auto num_places = reinterpret_cast<int (*)()>(dlsym(runtime, "omp_get_num_places"));
  const auto num_procs = reinterpret_cast<int (*)(int)>(dlsym(runtime, "omp_get_place_num_procs"));
  const auto proc_ids = reinterpret_cast<void (*)(int, int*)>(dlsym(runtime, "omp_get_place_proc_ids"));
  if (num_places == nullptr || num_procs == nullptr || proc_ids == nullptr) return;
  for (int place = 0, places = num_places(); place < places; ++place) {
    std::vector<int> ids(static_cast<std::size_t>(std::max(num_procs(place), 0)));
    proc_ids(place, ids.data());
    for (const int id : ids) {
      if (id >= 0 && id < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(id), &set);
    }
  }
}

cpu_set_t openmp_places() {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const std::string& path : openmp_runtimes()) {
    void* runtime = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (runtime == nullptr) continue;
    add_places(runtime, set);
    dlclose(runtime);
  }
  return set;
}

}  // namespace

std::vector<std::string> openmp_runtimes() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        const std::string_view path = info->dlpi_name != nullptr ? info->dlpi_name : "";
        const std::string_view file = path.substr(path.rfind('/') + 1);
        for (const std::string_view runtime : {"libgomp", "libiomp5", "libomp"}) {
          if (!file.starts_with(runtime)) continue;
          static_cast<std::vector<std::string>*>(found)->emplace_back(path);
          break;
        }
        return 0;
      },
      &paths);
  return paths;
}

cpu_set_t process_processors() {
  cpu_set_t set = processors_of(getpid()), common;
  const cpu_set_t own = processors_of(0), places = openmp_places();
  CPU_AND(&common, &set, &places);
  // A main thread that was bound elsewhere was bound by somebody else.
  if (CPU_EQUAL(&common, &set)) CPU_OR(&set, &set, &places);
  CPU_OR(&set, &set, &own);
  return set;
}

}  // namespace tilewise::core
