// A value made on first use and shared by all threads without a lock, so that a fork() beside the first use leaves
// nothing half-made in the child: threads that race each make one, and all but the first throw theirs away.
#pragma once

#include <atomic>
#include <memory>

namespace tilewise::jit {

template <typename Value>
class Published {
 public:
  template <typename Make>
  const Value& get(Make&& make) {
    if (const Value* known = value_.load(std::memory_order_acquire)) return *known;
    auto fresh = std::make_unique<const Value>(make());
    const Value* expected = nullptr;
    if (value_.compare_exchange_strong(expected, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
    return *expected;
  }

 private:
  std::atomic<const Value*> value_{nullptr};  // never freed: other threads may run while main() returns
};

}  // namespace tilewise::jit
