// Stackful fibers of one host thread: a lane of an emulated block is one. A switch saves the registers
// that a call preserves and nothing else, about 2 ns on x86-64; elsewhere ucontext does it.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) || defined(TILEWISE_FIBER_UCONTEXT)
#include <ucontext.h>
#endif

namespace tilewise::backends::emulation {

/// Equal stacks in one mapping, each above a page that faults.
class FiberStacks {
 public:
  /// Throws Error (runtime) where the system has no memory for them.
  FiberStacks(std::size_t count, std::size_t bytes_each);
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;

  [[nodiscard]] void* bottom(std::size_t index) const;
  [[nodiscard]] std::size_t size() const noexcept { return bytes_each_; }

 private:
  std::size_t bytes_each_, stride_, total_;
  void* memory_;
};

/// A place to go on from. Default-made, it is the thread's own once switch_to() leaves it.
class Fiber {
 public:
  /// Lays out a call of `entry(argument)`, which must not return. Forgets what ran on the stack before.
  void start(void* stack_bottom, std::size_t stack_bytes, void (*entry)(void*), void* argument);
  /// Leaves this fiber, which runs, for `next`. Returns when someone switches back.
  void switch_to(Fiber& next);
  /// As switch_to(), for the last time: the stack may be used anew.
  [[noreturn]] void leave_to(Fiber& next);

 private:
  static void begin(void* self);
  void change_stack(Fiber& next);

#if !defined(__x86_64__) || defined(TILEWISE_FIBER_UCONTEXT)
  ucontext_t context_{};
#else
  void* stack_pointer_ = nullptr;
#endif
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  Fiber* previous_ = nullptr;  // who switched here
  // What AddressSanitizer wants to know of a stack.
  const void* stack_bottom_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;
};

}  // namespace tilewise::backends::emulation
