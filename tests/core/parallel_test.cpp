// The thread pool's promises about failures and interruptions: who works, who polls, and that a job which is no longer
// wanted ends early and leaves the pool as it was.
#include "core/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include "core/interrupt.hpp"

namespace tilewise::core {
namespace {

constexpr double kLong = 1e9;  // microseconds

std::atomic<bool> listening{true}, raising{false};
std::atomic<int> polls{0};

struct Interruption {};

void poll() {
  ++polls;
  EXPECT_FALSE(abandoned());
  if (raising) throw Interruption{};
}

constexpr InterruptSource kSource{[]() noexcept { return listening.load(); }, &poll};

class Interrupts : public ::testing::Test {
 protected:
  Interrupts() {
    listening = true;
    raising = false;
    polls = 0;
    set_interrupt_source(&kSource);
  }
  ~Interrupts() override { set_interrupt_source(nullptr); }

  /// Every task once, by worker numbers in range.
  static void expect_complete(std::int64_t tasks, int workers) {
    std::vector<std::atomic<int>> done(static_cast<std::size_t>(tasks));
    parallel_for(tasks, workers, [&](std::int64_t task, int worker) {
      EXPECT_TRUE(worker >= 0 && worker < workers);
      ++done[static_cast<std::size_t>(task)];
    });
    for (const std::atomic<int>& count : done) EXPECT_EQ(count, 1);
  }
};

/// A task that ends when nobody wants it any more.
void wait_until_abandoned(std::int64_t, int) {
  while (!abandoned()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_F(Interrupts, TheCallingThreadLeavesLongWorkToOthers) {
  for (const auto& [estimate, tasks, workers] : {std::tuple{kLong, 5, 3}, {kLong, 1, 1}, {kLong, 4, 1}}) {
    const Interruptible scope(estimate);
    const std::thread::id caller = std::this_thread::get_id();
    parallel_for(tasks, workers, [&](std::int64_t, int) { EXPECT_NE(std::this_thread::get_id(), caller); });
    expect_complete(100, workers);
  }
  const std::thread::id caller = std::this_thread::get_id();
  parallel_for(1, 1, [&](std::int64_t, int) { EXPECT_EQ(std::this_thread::get_id(), caller); });
  const Interruptible brief(10.0);
  parallel_for(1, 1, [&](std::int64_t, int) { EXPECT_EQ(std::this_thread::get_id(), caller); });
  listening = false;
  const Interruptible deaf(kLong);
  parallel_for(1, 1, [&](std::int64_t, int) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST_F(Interrupts, PollsWhileOthersWork) {
  const Interruptible scope(kLong);
  parallel_for(2, 2, [](std::int64_t, int) {
    const int before = polls;
    while (polls < before + 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_GE(polls, 2);
}

TEST_F(Interrupts, WhatPollThrowsEndsTheJob) {
  const Interruptible scope(kLong);
  for (const int workers : {1, 2, 4}) {
    raising = true;
    EXPECT_THROW(parallel_for(1'000'000'000, workers, &wait_until_abandoned), Interruption);
    raising = false;
    EXPECT_FALSE(abandoned());
    expect_complete(50, workers);
  }
}

TEST_F(Interrupts, WorksBesideACallThatHasThePool) {
  std::atomic<bool> started{false}, release{false};
  std::thread other([&] {
    parallel_for(2, 2, [&](std::int64_t, int) {
      started = true;
      while (!release) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  });
  while (!started) std::this_thread::yield();
  {
    const Interruptible scope(kLong);
    expect_complete(20, 4);
    raising = true;
    EXPECT_THROW(parallel_for(100, 4, &wait_until_abandoned), Interruption);
  }
  release = true;
  other.join();
}

TEST_F(Interrupts, APollMayComputeItself) {
  static bool nested = false;
  static constexpr InterruptSource kComputing{[]() noexcept { return true; },
                                              [] {
                                                nested = true;
                                                expect_complete(10, 3);
                                              }};
  set_interrupt_source(&kComputing);
  const Interruptible scope(kLong);
  parallel_for(3, 2, [](std::int64_t, int) { std::this_thread::sleep_for(std::chrono::milliseconds(120)); });
  EXPECT_TRUE(nested);
}

TEST(Parallel, AFailedTaskTellsTheOthers) {
  for (const int workers : {2, 4}) {
    EXPECT_THROW(parallel_for(4, workers,
                              [](std::int64_t task, int worker) {
                                if (task == 0) throw std::runtime_error("first");
                                wait_until_abandoned(task, worker);
                              }),
                 std::runtime_error);
    EXPECT_FALSE(abandoned());
  }
}

}  // namespace
}  // namespace tilewise::core
