// How many CPU threads a call may use: set_num_threads(), the number of the framework whose arrays the call is on,
// or the processors there are, and never more than TILEWISE_NUM_THREADS.
#pragma once

#include "core/visibility.hpp"

namespace tilewise::core {

/// The limit for the calling thread's next call. Throws Error(invalid_argument) where TILEWISE_NUM_THREADS is no
/// number of threads.
[[nodiscard]] TILEWISE_INTERNAL int num_threads();

/// Processors that this process may run on.
[[nodiscard]] int num_cores();

/// set_num_threads() in a process whose framework gives `framework` threads (0: there is none, or not yet). The choice
/// holds until the framework gives another number, which each thread notices on its own; one made before there was a
/// framework holds against the first number seen.
TILEWISE_INTERNAL void set_num_threads(int num_threads, int framework);

/// For a scope, what this thread's framework gives, such as torch.get_num_threads(): num_threads() follows it where
/// no choice holds. 0: no framework.
class TILEWISE_INTERNAL FrameworkThreads {
 public:
  explicit FrameworkThreads(int num_threads) noexcept;
  ~FrameworkThreads();
  FrameworkThreads(const FrameworkThreads&) = delete;
  FrameworkThreads& operator=(const FrameworkThreads&) = delete;

 private:
  int previous_;
};

}  // namespace tilewise::core
