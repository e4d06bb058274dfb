// find_or_compile() as a whole: memory, disk, damage, unwritable places, many threads and processes, fork().
#include "jit/kernel_cache.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>

#include "jit/child_process.hpp"
#include "jit/disk_cache.hpp"
#include "support.hpp"

namespace tilewise::jit {
namespace {

namespace fs = std::filesystem;

class KernelCache : public JitTest {
 protected:
  KernelCache() { set_variable("TILEWISE_CXX", make_compiler("compiler", "echo machine code > kernel.out")); }
  static bool compiles(const KernelSource& source = doubling_kernel()) {
    return find_or_compile(kHost, source)->compile_seconds > 0;
  }
  /// As a new process would.
  static bool compiles_anew() {
    forget_kernels();
    return compiles();
  }
};

TEST_F(KernelCache, CompilesOnceForMemoryAndDisk) {
  EXPECT_EQ(find_compiled(kHost, doubling_kernel()), nullptr);
  const auto first = find_or_compile(kHost, doubling_kernel());
  EXPECT_EQ(find_or_compile(kHost, doubling_kernel()), first);
  EXPECT_EQ(find_compiled(kHost, doubling_kernel()), first);
  forget_kernels();
  const auto second = find_or_compile(kHost, doubling_kernel());
  EXPECT_NE(second, first);
  EXPECT_EQ(second->image, first->image);
  EXPECT_EQ(second->compile_seconds, 0);
  EXPECT_EQ(runs(), 1U);
  forget_kernels();
  EXPECT_NE(find_compiled(kHost, doubling_kernel()), nullptr);
}

TEST_F(KernelCache, KeyCoversSourceOptionsAndCompiler) {
  EXPECT_TRUE(compiles());
  EXPECT_TRUE(compiles(doubling_kernel("other")));
  KernelSource with_option = doubling_kernel();
  with_option.options = {"-DX"};
  EXPECT_TRUE(compiles(with_option));
  set_variable("TILEWISE_CXX", make_compiler("other", "echo machine code > kernel.out", "fake 1.2 (another build)"));
  EXPECT_TRUE(compiles_anew());
  EXPECT_EQ(kernel_files().size(), 4U);
  set_variable("TILEWISE_CXX", make_compiler("moved", "exit 1"));
  EXPECT_FALSE(compiles_anew()) << "the same compiler in another place";
}

TEST_F(KernelCache, DamagedEntriesAreRecompiled) {
  ASSERT_TRUE(compiles());
  ASSERT_EQ(kernel_files().size(), 1U);
  const fs::path path = kernel_files()[0];
  const std::string whole = read(path);
  constexpr std::size_t kVersionAt = 8;
  std::string flipped = whole, foreign = whole;
  flipped[whole.size() - 20] = static_cast<char>(flipped[whole.size() - 20] ^ 1);
  foreign[kVersionAt] = static_cast<char>(foreign[kVersionAt] + 1);
  for (const std::string& damaged : {whole.substr(0, whole.size() / 2), std::string(), flipped, foreign}) {
    write(path, damaged);
    EXPECT_TRUE(compiles_anew());
    EXPECT_FALSE(compiles_anew()) << "and the entry is whole again";
  }
}

TEST_F(KernelCache, UnwritableFolderOnlyCostsTheCaching) {
  write(folder() / "file", "");
  // The second takes no files even from root.
  for (const std::string& place : {(folder() / "file" / "below").string(), std::string("/proc/tilewise")}) {
    set_variable("TILEWISE_CACHE_DIR", place);
    EXPECT_TRUE(compiles_anew());
    EXPECT_NE(find_compiled(kHost, doubling_kernel()), nullptr) << "memory keeps it";
    EXPECT_TRUE(compiles_anew());
  }
  set_variable("TILEWISE_CACHE_DIR", ""), set_variable("XDG_CACHE_HOME", ""), set_variable("HOME", "");
  EXPECT_TRUE(compiles_anew());
}

TEST_F(KernelCache, ReadOnlyFolderStillServes) {
  ASSERT_TRUE(compiles());
  fs::permissions(cache() / "kernels", fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_FALSE(compiles_anew());
  EXPECT_TRUE(compiles(doubling_kernel("other")));
  fs::permissions(cache() / "kernels", fs::perms::owner_all);
}

TEST_F(KernelCache, FullFolderOnlyCostsTheCaching) {
  // A limit on the size of files stands for a disk without room: the compiler's few bytes fit, the kernel's file not.
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{64, 64};
    setrlimit(RLIMIT_FSIZE, &limit);
    _exit(compiles() && compiles_anew() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(kernel_files().empty()) << "no half-written file stays";
}

TEST_F(KernelCache, ManyThreadsCompileOnce) {
  set_variable("TILEWISE_CXX", make_compiler("slow", "sleep 0.2; echo machine code > kernel.out"));
  set_variable("TILEWISE_CACHE_SIZE_MB", "0");  // so that memory alone keeps them from compiling twice
  std::vector<std::thread> threads;
  std::array<std::shared_ptr<const CompiledKernel>, 8> kernels;
  for (auto& kernel : kernels) threads.emplace_back([&kernel] { kernel = find_or_compile(kHost, doubling_kernel()); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(runs(), 1U);
  for (const auto& kernel : kernels) EXPECT_EQ(kernel, kernels[0]);
}

TEST_F(KernelCache, ManyThreadsFailOnce) {
  set_variable("TILEWISE_CXX", make_compiler("slow", "sleep 0.2; exit 1"));
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&failed] {
      try {
        (void)find_or_compile(kHost, doubling_kernel());
      } catch (const Error&) {
        ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 8);
  EXPECT_EQ(runs(), 1U);
}

TEST_F(KernelCache, EightProcessesCompileOnce) {
  set_variable("TILEWISE_CXX", make_compiler("slow", "sleep 0.5; echo machine code > kernel.out"));
  std::vector<std::thread> threads;
  std::array<ChildResult, 8> results;
  for (ChildResult& result : results) {
    threads.emplace_back([&result] { result = run_child({JIT_WORKER}, {}, {}, 60); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(runs(), 1U);
  for (const ChildResult& result : results) EXPECT_TRUE(result.succeeded()) << result.ending() << result.output;
  EXPECT_EQ(std::ranges::count(results, "compiled\n", &ChildResult::output), 1);
  EXPECT_EQ(std::ranges::count(results, "found\n", &ChildResult::output), 7);
}

TEST_F(KernelCache, DeadProcessLeavesNoLock) {
  set_variable("TILEWISE_CXX", make_compiler("hanging", "sleep 1000"));
  const pid_t child = fork();
  if (child == 0) {
    (void)find_or_compile(kHost, doubling_kernel());
    _exit(0);
  }
  while (runs() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  make_compiler("hanging", "echo machine code > kernel.out");
  EXPECT_TRUE(compiles());
}

TEST_F(KernelCache, ChildForkedDuringACompilationGoesOn) {
  set_variable("TILEWISE_CXX", make_compiler("slow", "sleep 0.4; echo machine code > kernel.out"));
  std::thread compiling([] { EXPECT_TRUE(compiles()); });
  while (runs() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const bool same = !find_or_compile(kHost, doubling_kernel())->image.empty();
    const bool other = !find_or_compile(kHost, doubling_kernel("other"))->image.empty();
    _exit(same && other ? 0 : 1);
  }
  compiling.join();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(runs(), 2U);
}

}  // namespace
}  // namespace tilewise::jit
