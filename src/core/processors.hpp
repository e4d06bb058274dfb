// Which processors the process may run on, whatever the calling thread is bound to.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace tilewise::core {

/// Paths of the OpenMP runtimes in this process: programs may have several.
[[nodiscard]] std::vector<std::string> openmp_runtimes();

/// The calling thread's processors, the main thread's, and those among which OpenMP divided its own threads where it
/// has bound the main one to some of them (GOMP_CPU_AFFINITY, OMP_PLACES, OMP_PROC_BIND). Empty: the system does not
/// say.
[[nodiscard]] cpu_set_t process_processors();

}  // namespace tilewise::core
