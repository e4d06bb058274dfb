// The CPU thread pool: parallel_for over independent tasks. Workers sleep between jobs, a
// forked child makes its own pool, and every task runs in the default floating-point mode.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "core/num_threads.hpp"
#include "core/visibility.hpp"

namespace tilewise::core {

/// A borrowed callable void(task, worker); valid while the callable lives. Never allocates.
class TaskRef {
 public:
  template <typename Callable>
    requires(!std::is_same_v<std::remove_cvref_t<Callable>, TaskRef>)
  TaskRef(Callable&& callable) noexcept  // NOLINT(google-explicit-constructor): a parameter type
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, std::int64_t task, int worker) {
          (*static_cast<std::remove_reference_t<Callable>*>(object))(task, worker);
        }) {}
  void operator()(std::int64_t task, int worker) const { call_(object_, task, worker); }

 private:
  void* object_;
  void (*call_)(void*, std::int64_t, int);
};

/// Runs fn(task, worker) for every task in [0, num_tasks), worker in [0, max_workers), in
/// ascending order of start. The calling thread is worker 0; others join as they wake. A call
/// made while the pool is busy (or from inside a task) runs all its tasks on its own thread.
/// The first exception thrown by a task is rethrown here once all have stopped. In an Interruptible scope that polls,
/// the calling thread does no task.
TILEWISE_INTERNAL void parallel_for(std::int64_t num_tasks, int max_workers, TaskRef fn);

/// Whether the tasks of this thread's parallel_for() are no longer wanted, since one has failed or the call is
/// interrupted. A task that takes long asks now and then, and returns; what it has written does not matter then.
[[nodiscard]] TILEWISE_INTERNAL bool abandoned() noexcept;

/// As above with num_threads() workers.
TILEWISE_INTERNAL void parallel_for(std::int64_t num_tasks, TaskRef fn);

}  // namespace tilewise::core
