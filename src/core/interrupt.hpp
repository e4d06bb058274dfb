// Interrupting a long call on the CPU. A host language whose signals only one of its threads can answer (Python, and
// its Ctrl-C) is asked by that thread while others compute; without one, nothing here costs anything.
#pragma once

#include "core/visibility.hpp"

namespace tilewise::core {

/// What the host language offers. Both functions are called on the thread that made the call, outside of any task.
struct InterruptSource {
  bool (*listens)() noexcept;  ///< whether signals can be answered on this thread
  void (*poll)();              ///< answers them; throws to abandon the call
};

/// `source` must live as long as the program.
TILEWISE_INTERNAL void set_interrupt_source(const InterruptSource* source) noexcept;

/// For a scope that is expected to take this long: where the calling thread listens and the time is worth it, its
/// parallel_for()s leave all tasks to other threads and poll every 50 ms. What poll() throws is thrown from there,
/// as soon as the tasks have ended or noticed abandoned(); outputs are undefined then.
class Interruptible {
 public:
  explicit Interruptible(double estimated_us) noexcept;
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  using Poll = void (*)();
  /// What this thread has to poll; null: nothing.
  [[nodiscard]] static Poll poll() noexcept;

 private:
  Poll previous_;
};

}  // namespace tilewise::core
