// The pool behind parallel_for: one job at a time, a sleeping worker per extra thread. The calling thread works too,
// or waits and polls for interruptions.
#include "core/parallel.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "core/interrupt.hpp"
#include "core/openmp_threads.hpp"
#include "core/processors.hpp"

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

/// Tasks that threads take one after another.
class Job {
 public:
  Job(TaskRef fn, std::int64_t num_tasks) : fn_(fn), num_tasks_(num_tasks) {}

  /// Runs tasks until there are no more, or one has failed.
  void work(int worker) {
    const DefaultFloatMode mode;
    const Current current(&failed_);
    while (!failed_.load(std::memory_order_relaxed)) {
      const std::int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
      if (task >= num_tasks_) return;
      try {
        fn_(task, worker);
      } catch (...) {
        fail();
      }
    }
  }

  /// Keeps the exception being handled, if it is the first, and ends the job.
  void fail() noexcept {
    if (!reported_.exchange(true)) error_ = std::current_exception();
    failed_.store(true, std::memory_order_relaxed);
  }

  /// Whether no task is left to be started.
  [[nodiscard]] bool exhausted() const {
    return failed_.load(std::memory_order_relaxed) || next_.load(std::memory_order_relaxed) >= num_tasks_;
  }
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_relaxed); }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

  /// Whether the job that this thread works on has failed.
  [[nodiscard]] static bool current_failed() noexcept {
    const std::atomic<bool>* flag = current_flag();
    return flag != nullptr && flag->load(std::memory_order_relaxed);
  }

 private:
  static const std::atomic<bool>*& current_flag() noexcept {
    thread_local const std::atomic<bool>* flag = nullptr;
    return flag;
  }
  class Current {
   public:
    explicit Current(const std::atomic<bool>* flag) : previous_(current_flag()) { current_flag() = flag; }
    ~Current() { current_flag() = previous_; }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const std::atomic<bool>* previous_;
  };

  TaskRef fn_;
  std::int64_t num_tasks_;
  std::atomic<std::int64_t> next_{0};
  std::atomic<bool> failed_{false}, reported_{false};
  std::exception_ptr error_{};
};

/// Waits on the calling thread until over(), which `lock` guards and `changed` announces, and polls meanwhile.
template <typename Over>
void wait_and_poll(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Job& job,
                   Interruptible::Poll poll, const Over& over) {
  constexpr std::chrono::milliseconds kInterval{50};
  auto next_poll = std::chrono::steady_clock::now() + kInterval;
  while (!over()) {
    if (job.failed()) {
      changed.wait(lock);
    } else if (changed.wait_until(lock, next_poll) == std::cv_status::timeout) {
      lock.unlock();
      try {
        poll();
      } catch (...) {
        job.fail();
      }
      next_poll = std::chrono::steady_clock::now() + kInterval;
      lock.lock();
    }
  }
}

void run_serially(std::int64_t num_tasks, TaskRef fn) {
  const DefaultFloatMode mode;
  for (std::int64_t task = 0; task < num_tasks && !Job::current_failed(); ++task) fn(task, 0);
}

/// The same on a thread made for it, while the calling one polls.
void run_aside(std::int64_t num_tasks, TaskRef fn, Interruptible::Poll poll) {
  Job job(fn, num_tasks);
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::thread deputy;
  try {
    deputy = std::thread([&] {
      job.work(0);
      const std::lock_guard<std::mutex> lock(mutex);
      ended = true;
      changed.notify_one();
    });
  } catch (const std::system_error&) {
    return run_serially(num_tasks, fn);  // the system gives no more threads
  }
  std::unique_lock<std::mutex> lock(mutex);
  wait_and_poll(lock, changed, job, poll, [&] { return ended; });
  lock.unlock();
  deputy.join();
  job.rethrow();
}

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

  /// `poll`: null, or what the calling thread does instead of working.
  void run(std::int64_t num_tasks, int max_workers, TaskRef fn, Interruptible::Poll poll) {
    if (busy_.exchange(true, std::memory_order_acquire)) {
      return poll != nullptr ? run_aside(num_tasks, fn, poll) : run_serially(num_tasks, fn);
    }
    Job job(fn, num_tasks);
    if (openmp_threads_are_shared()) {
      run_on_openmp_threads(max_workers, [](void* given, int worker) { static_cast<Job*>(given)->work(worker); }, &job);
      busy_.store(false, std::memory_order_release);
      return job.rethrow();
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      grow(poll != nullptr ? max_workers : max_workers - 1);
      if (size_ == 0) poll = nullptr;  // nobody else is there to work
      job_ = &job;
      ++generation_;
      vacancies_ = poll != nullptr ? max_workers : max_workers - 1;
      next_worker_ = poll != nullptr ? 0 : 1;
    }
    wake_.notify_all();
    if (poll == nullptr) job.work(0);
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (poll != nullptr) {
        wait_and_poll(lock, done_, job, poll, [&] { return running_ == 0 && job.exhausted(); });
      }
      vacancies_ = 0;
      done_.wait(lock, [this] { return running_ == 0; });
    }
    busy_.store(false, std::memory_order_release);
    job.rethrow();
  }

  static void forget() { current().store(nullptr); }

 private:
  static std::atomic<Pool*>& current() {
    static constinit std::atomic<Pool*> pool{nullptr};
    return pool;
  }

  /// Up to that many threads. They may run wherever the process may: one that started them is often bound to a single
  /// processor, which they would share with it.
  void grow(int workers) {
    if (size_ >= workers) return;
    const cpu_set_t processors = process_processors();
    while (size_ < workers) {
      try {
        std::thread([this, processors] {
          pthread_setaffinity_np(pthread_self(), sizeof processors, &processors);  // refused: it keeps the starter's
          serve();
        }).detach();
      } catch (const std::system_error&) {
        return;  // the system gives no more threads: fewer workers do the same tasks
      }
      ++size_;
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
      job.work(worker);
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
[[maybe_unused]] const int kForkHandler = pthread_atfork(nullptr, nullptr, [] {
  Pool::forget();
  forget_openmp_threads();
});

}  // namespace

bool abandoned() noexcept { return Job::current_failed(); }

void parallel_for(std::int64_t num_tasks, int max_workers, TaskRef fn) {
  const bool pooled = num_tasks > 0 && !openmp_threads_are_shared();
  const Interruptible::Poll poll = pooled ? Interruptible::poll() : nullptr;
  if (poll == nullptr && (max_workers <= 1 || num_tasks <= 1)) return run_serially(num_tasks, fn);
  const auto limit = static_cast<int>(std::min<std::int64_t>(num_tasks, std::max(max_workers, 1)));
  Pool::instance().run(num_tasks, limit, fn, poll);
}

void parallel_for(std::int64_t num_tasks, TaskRef fn) { parallel_for(num_tasks, num_threads(), fn); }

}  // namespace tilewise::core
