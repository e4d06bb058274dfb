// The pool behind parallel_for: one job at a time, a sleeping worker per extra thread.
#include "core/parallel.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__SSE__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace tilewise::core {
namespace {

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

}  // namespace

void parallel_for(std::int64_t num_tasks, int max_workers, TaskRef fn) {
  if (max_workers <= 1 || num_tasks <= 1) return Pool::run_serially(num_tasks, fn);
  const auto limit = static_cast<int>(std::min<std::int64_t>(num_tasks, max_workers));
  Pool::instance().run(num_tasks, limit, fn);
}

void parallel_for(std::int64_t num_tasks, TaskRef fn) { parallel_for(num_tasks, num_threads(), fn); }

}  // namespace tilewise::core
