// Whom to ask for interruptions, and when; parallel.cpp asks.
#include "core/interrupt.hpp"

#include <atomic>

namespace tilewise::core {
namespace {

/// From here on handing a call to other threads, some 20 µs, is nothing beside it. Estimates of slow calls (narrow
/// rows, dropout) may be ten times too short.
constexpr double kLongCallUs = 10'000.0;

std::atomic<const InterruptSource*>& current_source() {
  static constinit std::atomic<const InterruptSource*> source{nullptr};
  return source;
}

Interruptible::Poll& current_poll() {
  thread_local Interruptible::Poll poll = nullptr;
  return poll;
}

}  // namespace

void set_interrupt_source(const InterruptSource* source) noexcept {
  current_source().store(source, std::memory_order_release);
}

Interruptible::Interruptible(double estimated_us) noexcept : previous_(current_poll()) {
  const InterruptSource* source = current_source().load(std::memory_order_acquire);
  const bool wanted = source != nullptr && estimated_us >= kLongCallUs && source->listens();
  current_poll() = wanted ? source->poll : nullptr;
}

Interruptible::~Interruptible() { current_poll() = previous_; }

Interruptible::Poll Interruptible::poll() noexcept { return current_poll(); }

}  // namespace tilewise::core
