// The pool behind parallel_for: one job at a time, a sleeping worker per extra thread.
#include "core/parallel.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#if defined(__SSE__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

#include "tilewise/attention.hpp"
#include "tilewise/error.hpp"

namespace tilewise {
namespace core {
namespace {

constexpr int kMaxThreads = 1024;

/// Round to nearest with denormals kept, whatever the caller or another library had set.
class DefaultFloatMode {
 public:
#if defined(__SSE__)
  DefaultFloatMode() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~DefaultFloatMode() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  DefaultFloatMode() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatMode() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
 public:
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;
};

class Pool {
 public:
  /// The process's pool. Never destroyed: workers may outlive main()'s statics. A fork's child
  /// forgets it, having none of its threads, and makes its own.
  static Pool& instance() {
    Pool* pool = current().load(std::memory_order_acquire);
    if (pool) return *pool;
    Pool* fresh = new Pool;
    if (current().compare_exchange_strong(pool, fresh)) return *fresh;
    delete fresh;
    return *pool;
  }

  void run(std::int64_t num_tasks, int max_workers, TaskRef fn) {
    if (busy_.exchange(true, std::memory_order_acquire)) return run_serially(num_tasks, fn);
    Job job{fn, num_tasks};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      grow(max_workers - 1);
      job_ = &job;
      ++generation_;
      vacancies_ = max_workers - 1;
      next_worker_ = 1;
    }
    wake_.notify_all();
    work(job, 0);
    {
      std::unique_lock<std::mutex> lock(mutex_);
      vacancies_ = 0;
      done_.wait(lock, [this] { return running_ == 0; });
    }
    busy_.store(false, std::memory_order_release);
    if (job.error) std::rethrow_exception(job.error);
  }

  static void forget() { current().store(nullptr); }

  static void run_serially(std::int64_t num_tasks, TaskRef fn) {
    const DefaultFloatMode mode;
    for (std::int64_t task = 0; task < num_tasks; ++task) fn(task, 0);
  }

 private:
  struct Job {
    TaskRef fn;
    std::int64_t num_tasks;
    std::atomic<std::int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error{};
  };

  static std::atomic<Pool*>& current() {
    static constinit std::atomic<Pool*> pool{nullptr};
    return pool;
  }

  void grow(int workers) {
    while (size_ < workers) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        return;  // the system gives no more threads: fewer workers do the same tasks
      }
      ++size_;
    }
  }

  static void work(Job& job, int worker) {
    const DefaultFloatMode mode;
    for (;;) {
      const std::int64_t task = job.next.fetch_add(1, std::memory_order_relaxed);
      if (task >= job.num_tasks || job.failed.load(std::memory_order_relaxed)) return;
      try {
        job.fn(task, worker);
      } catch (...) {
        if (!job.failed.exchange(true)) job.error = std::current_exception();
      }
    }
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    std::uint64_t served = 0;  // a worker takes one seat of a job, not a second one
    for (;;) {
      wake_.wait(lock, [this, &served] { return vacancies_ > 0 && generation_ != served; });
      served = generation_;
      --vacancies_;
      ++running_;
      const int worker = next_worker_++;
      Job& job = *job_;
      lock.unlock();
      work(job, worker);
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::atomic<bool> busy_{false};  // a job runs; its caller alone may clear this
  std::mutex mutex_;               // guards everything below
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  std::uint64_t generation_ = 0;
  int size_ = 0, vacancies_ = 0, running_ = 0, next_worker_ = 1;
};

/// At load, not at first use: a fork() beside that first use would find it half registered.
[[maybe_unused]] const int kForkHandler = pthread_atfork(nullptr, nullptr, [] { Pool::forget(); });

int default_num_threads() {
  if (const char* text = std::getenv("TILEWISE_NUM_THREADS"); text && *text) {
    int value = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, status] = std::from_chars(text, end, value);
    if (status != std::errc{} || stop != end || value < 1 || value > kMaxThreads) {
      throw Error(ErrorCode::invalid_argument, "TILEWISE_NUM_THREADS: must be an integer from 1 to " +
                                                   std::to_string(kMaxThreads) + " (got '" + text + "')");
    }
    return value;
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// 0: the default, looked up once.
std::atomic<int>& chosen_num_threads() {
  static constinit std::atomic<int> value{0};
  return value;
}

int& scoped_num_threads() {
  thread_local int value = 0;
  return value;
}

}  // namespace

int num_threads() {
  if (const int scoped = scoped_num_threads(); scoped > 0) return scoped;
  if (const int chosen = chosen_num_threads().load(std::memory_order_relaxed); chosen > 0) return chosen;
  static constinit std::atomic<int> fallback{0};  // looked up once; two threads at once find the same
  int known = fallback.load(std::memory_order_relaxed);
  if (known == 0) fallback.store(known = default_num_threads(), std::memory_order_relaxed);
  return known;
}

ScopedNumThreads::ScopedNumThreads(int num_threads) noexcept : previous_(scoped_num_threads()) {
  scoped_num_threads() = std::clamp(num_threads, 0, kMaxThreads);
}

ScopedNumThreads::~ScopedNumThreads() { scoped_num_threads() = previous_; }

void parallel_for(std::int64_t num_tasks, int max_workers, TaskRef fn) {
  if (max_workers <= 1 || num_tasks <= 1) return Pool::run_serially(num_tasks, fn);
  const auto limit = static_cast<int>(std::min<std::int64_t>(num_tasks, max_workers));
  Pool::instance().run(num_tasks, limit, fn);
}

void parallel_for(std::int64_t num_tasks, TaskRef fn) { parallel_for(num_tasks, num_threads(), fn); }

}  // namespace core

void set_num_threads(int num_threads) {
  if (num_threads < 0 || num_threads > core::kMaxThreads) {
    throw Error(ErrorCode::invalid_argument, "num_threads: must be from 0 to " + std::to_string(core::kMaxThreads) +
                                                 " (got " + std::to_string(num_threads) + ")");
  }
  core::chosen_num_threads().store(num_threads, std::memory_order_relaxed);
}

int get_num_threads() { return core::num_threads(); }

}  // namespace tilewise
