// The threads of the OpenMP runtime that a program has loaded with a framework, for parallel_for() to work on.
#pragma once

#include "core/visibility.hpp"

namespace tilewise::core {

/// Whether parallel_for() works on the threads of an OpenMP runtime, where there is one, in place of its own. Those
/// wait for their next work by spinning, beside which a pool's threads get a part of the processors. Off until it is
/// asked for: on them no call can be interrupted.
TILEWISE_INTERNAL void share_openmp_threads(bool shared) noexcept;

/// Whether that is so, here and now: not in a forked child, which has none of the threads.
[[nodiscard]] bool openmp_threads_are_shared() noexcept;

/// Calls work(data, worker) on up to `workers` of the threads at once, each with its number; the calling one is 0.
/// Only where they are shared.
void run_on_openmp_threads(int workers, void (*work)(void* data, int worker), void* data);

/// What a forked child calls.
void forget_openmp_threads() noexcept;

}  // namespace tilewise::core
