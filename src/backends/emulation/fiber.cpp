// Fibers: stacks, the switch between them, and what AddressSanitizer must be told of it.
#include "backends/emulation/fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>

#include "core/message.hpp"

// As <sanitizer/...> has them, which not every compiler brings along. Called under AddressSanitizer alone.
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, std::size_t bytes);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom, std::size_t* old_bytes);
void __asan_unpoison_memory_region(const volatile void* memory, std::size_t bytes);
}

namespace tilewise::backends::emulation {
namespace {

// GCC defines a macro, clang before 22 a feature.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TILEWISE_ADDRESS_SANITIZER
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(TILEWISE_ADDRESS_SANITIZER)
constexpr bool kTellSanitizer = true;
#else
constexpr bool kTellSanitizer = false;
#endif

}  // namespace

FiberStacks::FiberStacks(std::size_t count, std::size_t bytes_each) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  bytes_each_ = (bytes_each + page - 1) / page * page;
  stride_ = bytes_each_ + page;
  total_ = count * stride_;
  memory_ = mmap(nullptr, total_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory_ == MAP_FAILED) {
    throw Error(ErrorCode::runtime,
                core::concat("emulation: no memory for ", count, " stacks of ", bytes_each_, " bytes"));
  }
  for (std::size_t i = 0; i < count; ++i) mprotect(static_cast<char*>(memory_) + i * stride_, page, PROT_NONE);
}

FiberStacks::~FiberStacks() {
  if constexpr (kTellSanitizer) __asan_unpoison_memory_region(memory_, total_);
  munmap(memory_, total_);
}

void* FiberStacks::bottom(std::size_t index) const {
  return static_cast<char*>(memory_) + index * stride_ + (stride_ - bytes_each_);
}

#if defined(__x86_64__) && !defined(TILEWISE_FIBER_UCONTEXT)

// switch: saves what a call preserves on the stack, its pointer in *rdi, and goes on at the stack rsi.
// start: the first thing a fiber runs; registers r12 and r13 were laid out by start().
asm(R"(
  .pushsection .text
  .balign 16
  .hidden tilewise_fiber_switch
  .globl tilewise_fiber_switch
  .type tilewise_fiber_switch, @function
tilewise_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size tilewise_fiber_switch, . - tilewise_fiber_switch
  .hidden tilewise_fiber_start
  .globl tilewise_fiber_start
  .type tilewise_fiber_start, @function
tilewise_fiber_start:
  movq %r12, %rdi
  callq *%r13
  ud2
  .size tilewise_fiber_start, . - tilewise_fiber_start
  .popsection
)");
extern "C" {
[[gnu::visibility("hidden")]] void tilewise_fiber_switch(void** saved, void* next);
[[gnu::visibility("hidden")]] void tilewise_fiber_start();
}

void Fiber::start(void* stack_bottom, std::size_t stack_bytes, void (*entry)(void*), void* argument) {
  if constexpr (kTellSanitizer) __asan_unpoison_memory_region(stack_bottom, stack_bytes);
  *this = Fiber{};
  entry_ = entry, argument_ = argument, stack_bottom_ = stack_bottom, stack_bytes_ = stack_bytes;
  // From the top down: where the switch returns to, then rbp, rbx, r12, r13, r14, r15 as it pops them.
  auto* const top = reinterpret_cast<void**>(static_cast<char*>(stack_bottom) + stack_bytes);
  top[-1] = reinterpret_cast<void*>(&tilewise_fiber_start);
  top[-2] = top[-3] = nullptr;
  top[-4] = this;
  top[-5] = reinterpret_cast<void*>(&Fiber::begin);
  top[-6] = top[-7] = nullptr;
  stack_pointer_ = top - 7;
}

void Fiber::change_stack(Fiber& next) { tilewise_fiber_switch(&stack_pointer_, next.stack_pointer_); }

#else

void Fiber::start(void* stack_bottom, std::size_t stack_bytes, void (*entry)(void*), void* argument) {
  if constexpr (kTellSanitizer) __asan_unpoison_memory_region(stack_bottom, stack_bytes);
  *this = Fiber{};
  entry_ = entry, argument_ = argument, stack_bottom_ = stack_bottom, stack_bytes_ = stack_bytes;
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_bottom;
  context_.uc_stack.ss_size = stack_bytes;
  // makecontext() passes ints: a pointer goes in halves.
  constexpr auto kEntry = [](unsigned low, unsigned high) {
    begin(reinterpret_cast<void*>(static_cast<std::uintptr_t>(low) | static_cast<std::uintptr_t>(high) << 32));
  };
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&context_, reinterpret_cast<void (*)()>(+kEntry), 2, static_cast<unsigned>(self),
              static_cast<unsigned>(self >> 32));
}

void Fiber::change_stack(Fiber& next) { swapcontext(&context_, &next.context_); }

#endif

void Fiber::begin(void* self) {
  auto& fiber = *static_cast<Fiber*>(self);
  if constexpr (kTellSanitizer) {
    Fiber& previous = *fiber.previous_;
    __sanitizer_finish_switch_fiber(nullptr, &previous.stack_bottom_, &previous.stack_bytes_);
  }
  fiber.entry_(fiber.argument_);
  std::abort();  // entries leave by leave_to()
}

void Fiber::switch_to(Fiber& next) {
  next.previous_ = this;
  if constexpr (kTellSanitizer) __sanitizer_start_switch_fiber(&fake_stack_, next.stack_bottom_, next.stack_bytes_);
  change_stack(next);
  if constexpr (kTellSanitizer) __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
}

void Fiber::leave_to(Fiber& next) {
  next.previous_ = this;
  if constexpr (kTellSanitizer) __sanitizer_start_switch_fiber(nullptr, next.stack_bottom_, next.stack_bytes_);
  change_stack(next);
  std::abort();  // nobody comes back
}

}  // namespace tilewise::backends::emulation
