// The number of CPU threads; see num_threads.hpp.
#include "core/num_threads.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>

#include "core/message.hpp"
#include "core/processors.hpp"
#include "tilewise/plan.hpp"

namespace tilewise {
namespace core {
namespace {

constexpr int kMaxThreads = 1024;

int environment_limit() {
  const char* text = std::getenv("TILEWISE_NUM_THREADS");
  if (text == nullptr || *text == '\0') return kMaxThreads;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, status] = std::from_chars(text, end, value);
  if (status != std::errc{} || stop != end || value < 1 || value > kMaxThreads) {
    invalid_argument("TILEWISE_NUM_THREADS: must be an integer from 1 to ", kMaxThreads, " (got ", quoted(text), ")");
  }
  return value;
}

int processors() {
  const cpu_set_t set = process_processors();
  if (const int count = CPU_COUNT(&set); count > 0) return count;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// What `look_up` finds, once; two threads at once find the same.
template <int (*look_up)()>
int looked_up_once() {
  static constinit std::atomic<int> value{0};
  int known = value.load(std::memory_order_relaxed);
  if (known == 0) value.store(known = look_up(), std::memory_order_relaxed);
  return known;
}

/// A call of set_num_threads(), packed so that threads see all of it or nothing.
struct Choice {
  std::uint16_t num_threads = 0;  // 0: none
  std::uint16_t framework = 0;    // its number then; 0: not seen yet
  std::uint32_t serial = 0;       // tells choices apart
};

std::atomic<Choice>& current_choice() {
  static constinit std::atomic<Choice> choice{Choice{}};
  static_assert(std::atomic<Choice>::is_always_lock_free);
  return choice;
}

int& framework_threads() {
  thread_local int value = 0;
  return value;
}

/// The number of the choice that holds on this thread, or 0.
int chosen_threads(int framework) {
  thread_local std::uint32_t ended = 0;  // the serial of the choice that this thread saw the framework end
  Choice choice = current_choice().load(std::memory_order_relaxed);
  if (choice.num_threads == 0 || framework == 0) return choice.num_threads;
  if (choice.framework == 0) {
    Choice seen = choice;
    seen.framework = static_cast<std::uint16_t>(framework);
    if (current_choice().compare_exchange_strong(choice, seen)) choice = seen;
  }
  if (choice.framework != framework) ended = choice.serial;
  return choice.serial == ended ? 0 : choice.num_threads;
}

}  // namespace

int num_threads() {
  const int framework = framework_threads(), chosen = chosen_threads(framework);
  const int wanted = chosen > 0 ? chosen : framework > 0 ? framework : looked_up_once<processors>();
  return std::min(wanted, looked_up_once<environment_limit>());
}

int num_cores() { return looked_up_once<processors>(); }

void set_num_threads(int num_threads, int framework) {
  if (num_threads < 0 || num_threads > kMaxThreads) {
    invalid_argument("num_threads: must be from 0 to ", kMaxThreads, " (got ", num_threads, ")");
  }
  static constinit std::atomic<std::uint32_t> last_serial{0};
  current_choice().store(
      {static_cast<std::uint16_t>(num_threads), static_cast<std::uint16_t>(std::clamp(framework, 0, 0xFFFF)),
       last_serial.fetch_add(1, std::memory_order_relaxed) + 1},
      std::memory_order_relaxed);
}

FrameworkThreads::FrameworkThreads(int num_threads) noexcept : previous_(framework_threads()) {
  framework_threads() = std::clamp(num_threads, 0, 0xFFFF);
}

FrameworkThreads::~FrameworkThreads() { framework_threads() = previous_; }

}  // namespace core

void set_num_threads(int num_threads) { core::set_num_threads(num_threads, 0); }

int get_num_threads() { return core::num_threads(); }

}  // namespace tilewise
