// Fibers: each keeps its stack and registers over switches, in any order, and a stack serves again.
#include "backends/emulation/fiber.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace tilewise::test {
namespace {

using namespace backends::emulation;

struct Counter {
  Fiber fiber;
  Fiber* back = nullptr;
  std::uint64_t steps = 0, sum = 0;

  /// Integers and floating point in registers over many switches.
  static void run(void* self) {
    auto& counter = *static_cast<Counter*>(self);
    std::uint64_t a = 1, b = counter.steps, c = 3;
    double d = 0.5;
    for (std::uint64_t i = 0; i < counter.steps; ++i) {
      a += b, b ^= a, c = c * 5 + b, d += 1.0;
      counter.fiber.switch_to(*counter.back);
    }
    counter.sum = a + b + c + static_cast<std::uint64_t>(d);
    counter.fiber.leave_to(*counter.back);
  }
  [[nodiscard]] std::uint64_t expected() const {
    std::uint64_t a = 1, b = steps, c = 3;
    for (std::uint64_t i = 0; i < steps; ++i) a += b, b ^= a, c = c * 5 + b;
    return a + b + c + steps;
  }
};

TEST(Fiber, KeepsItsStateOverSwitches) {
  constexpr std::size_t kFibers = 7, kBytes = 64 << 10;
  FiberStacks stacks(kFibers, kBytes);
  for (int round = 0; round < 3; ++round) {
    Fiber main;
    std::vector<Counter> counters(kFibers);
    for (std::size_t i = 0; i < kFibers; ++i) {
      Counter& counter = counters[i];
      counter.back = &main;
      counter.steps = 10 * i + static_cast<std::uint64_t>(round);
      counter.fiber.start(stacks.bottom(i), stacks.size(), &Counter::run, &counter);
    }
    std::uint64_t left = kFibers;
    for (std::uint64_t step = 0; left > 0; ++step) {
      for (Counter& counter : counters) {
        if (step > counter.steps) continue;
        main.switch_to(counter.fiber);
        if (step == counter.steps) --left;
      }
    }
    for (const Counter& counter : counters) EXPECT_EQ(counter.sum, counter.expected());
  }
}

TEST(Fiber, StacksHaveTheirSizeAndAreApart) {
  const FiberStacks stacks(3, 10000);
  EXPECT_GE(stacks.size(), 10000u);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto* low = static_cast<const char*>(stacks.bottom(i));
    EXPECT_GT(static_cast<const char*>(stacks.bottom(i + 1)), low + stacks.size());
  }
}

TEST(FiberDeathTest, PastTheEndOfAStackIsAFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto overrun = [] {
    FiberStacks stacks(2, 16 << 10);
    static_cast<volatile char*>(stacks.bottom(1))[-1] = 1;
  };
  EXPECT_DEATH(overrun(), "");
}

}  // namespace
}  // namespace tilewise::test
