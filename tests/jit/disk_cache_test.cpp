// The disk cache by itself: what is stored comes back, what is damaged does not, old kernels go, locks exclude.
#include "jit/disk_cache.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "support.hpp"

namespace tilewise::jit {
namespace {

namespace fs = std::filesystem;

class DiskCache : public JitTest {
 protected:
  static KernelFile make_file(char digit, std::size_t bytes = 1000) {
    KernelFile file;
    file.key = std::string(64, digit);
    file.source_hash = std::string(64, 'f');
    file.target = parse_target("gfx942");
    file.kernel.image.assign(bytes, static_cast<std::byte>(digit));
    file.kernel.symbol = "kernel";
    file.kernel.resources = {1, 2, 3, 4, 5, 6};
    file.kernel.compiler = "fake 1.2";
    file.kernel.log = "log\nof two lines";
    file.kernel.compile_seconds = 1.5;
    return file;
  }
  [[nodiscard]] fs::path path_of(char digit) const {
    return cache() / "kernels" / (std::string(64, digit) + ".kernel");
  }
  [[nodiscard]] bool has(char digit) const { return fs::exists(path_of(digit)); }
  /// As if last used `hours` ago.
  void age(char digit, int hours) const {
    fs::last_write_time(path_of(digit), fs::file_time_type::clock::now() - std::chrono::hours(hours));
  }
};

TEST_F(DiskCache, ReturnsWhatWasStored) {
  const KernelFile file = make_file('a');
  store_on_disk(file);
  const auto loaded = load_from_disk(file.key);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->key, file.key);
  EXPECT_EQ(loaded->source_hash, file.source_hash);
  EXPECT_EQ(loaded->target, file.target);
  EXPECT_EQ(loaded->kernel.image, file.kernel.image);
  EXPECT_EQ(loaded->kernel.symbol, file.kernel.symbol);
  EXPECT_EQ(loaded->kernel.resources, file.kernel.resources);
  EXPECT_EQ(loaded->kernel.compiler, file.kernel.compiler);
  EXPECT_EQ(loaded->kernel.log, file.kernel.log);
  EXPECT_FALSE(load_from_disk(std::string(64, 'b')));
  EXPECT_EQ(kernel_files().size(), 1U) << "no temporary file stays";
}

TEST_F(DiskCache, IsForThisUserAlone) {
  store_on_disk(make_file('a'));
  struct stat status{};
  ASSERT_EQ(stat((cache() / "kernels").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
  ASSERT_EQ(stat(path_of('a').c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST_F(DiskCache, DamageIsNeverLoaded) {
  store_on_disk(make_file('a', 100));
  const std::string whole = read(path_of('a'));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write(path_of('a'), whole.substr(0, size));
    ASSERT_FALSE(load_from_disk(std::string(64, 'a'))) << size;
  }
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    std::string fault;
    ASSERT_FALSE(decode(as_bytes(flipped), fault)) << bit;
    ASSERT_FALSE(fault.empty());
  }
  write(path_of('a'), whole + "x");
  EXPECT_FALSE(load_from_disk(std::string(64, 'a')));
  write(path_of('b'), whole);
  EXPECT_FALSE(load_from_disk(std::string(64, 'b'))) << "another's kernel under this name";
  write(path_of('a'), whole);
  EXPECT_TRUE(load_from_disk(std::string(64, 'a')));
}

TEST_F(DiskCache, RemovesWhatWasNotUsedForLongest) {
  set_variable("TILEWISE_CACHE_SIZE_MB", "1");
  constexpr std::size_t kThird = 320'000;
  for (const char digit : {'1', '2', '3'}) store_on_disk(make_file(digit, kThird));
  EXPECT_EQ(kernel_files().size(), 3U);
  age('1', 3), age('2', 2), age('3', 1);
  EXPECT_TRUE(load_from_disk(std::string(64, '1')));  // used now
  store_on_disk(make_file('4', kThird));
  EXPECT_TRUE(has('1') && has('3') && has('4'));
  EXPECT_FALSE(has('2'));
  store_on_disk(make_file('5', 2'000'000));
  EXPECT_FALSE(has('5')) << "larger than the whole cache";
  EXPECT_EQ(kernel_files().size(), 3U);
}

TEST_F(DiskCache, KeepsNothingWhereTheLimitIsZero) {
  set_variable("TILEWISE_CACHE_SIZE_MB", "0");
  store_on_disk(make_file('a'));
  EXPECT_TRUE(kernel_files().empty());
  for (const char* value : {"-1", "1.5", "many", "99999999999"}) {
    set_variable("TILEWISE_CACHE_SIZE_MB", value);
    EXPECT_EQ(error_of(ErrorCode::invalid_argument, [] { (void)cache_size_limit(); }),
              "TILEWISE_CACHE_SIZE_MB: must be an integer in [0, 1073741824] (got '" + std::string(value) + "')");
  }
}

TEST_F(DiskCache, SweepsWhatADeadProcessLeft) {
  store_on_disk(make_file('a'));
  const fs::path old_file = cache() / "kernels" / "left.tmp", new_file = cache() / "kernels" / "new.tmp";
  write(old_file, "half"), write(new_file, "half");
  fs::last_write_time(old_file, fs::file_time_type::clock::now() - std::chrono::hours(2));
  store_on_disk(make_file('b'));
  EXPECT_FALSE(fs::exists(old_file));
  EXPECT_TRUE(fs::exists(new_file)) << "its writer may be alive";
}

TEST_F(DiskCache, ListsAndClears) {
  EXPECT_TRUE(list_disk_cache().empty());
  EXPECT_EQ(clear_disk_cache(), 0U);
  for (const char digit : {'a', 'b', 'c'}) store_on_disk(make_file(digit));
  age('a', 2), age('b', 5);
  write(path_of('c'), "damaged");
  const auto kernels = list_disk_cache();
  ASSERT_EQ(kernels.size(), 3U);
  EXPECT_EQ(kernels[0].key, std::string(64, 'c'));
  EXPECT_EQ(kernels[0].fault, "not a kernel of Tilewise");
  EXPECT_EQ(kernels[1].key, std::string(64, 'a'));
  EXPECT_EQ(kernels[1].fault, "");
  EXPECT_EQ(kernels[1].architecture, "gfx942");
  EXPECT_EQ(kernels[1].symbol, "kernel");
  EXPECT_EQ(kernels[1].compiler, "fake 1.2");
  EXPECT_EQ(kernels[2].key, std::string(64, 'b'));
  EXPECT_EQ(clear_disk_cache(), 3U);
  EXPECT_TRUE(list_disk_cache().empty());
}

TEST_F(DiskCache, FolderFollowsTheVariables) {
  EXPECT_EQ(cache_folder(), cache());
  EXPECT_EQ(cache_folder_reason(), "");
  EXPECT_FALSE(fs::exists(cache())) << "asking makes nothing";
  set_variable("TILEWISE_CACHE_DIR", "");
  set_variable("XDG_CACHE_HOME", "/xdg");
  EXPECT_EQ(cache_folder(), "/xdg/tilewise");
  set_variable("XDG_CACHE_HOME", "not/absolute");
  set_variable("HOME", "/home/someone");
  EXPECT_EQ(cache_folder(), "/home/someone/.cache/tilewise");
  set_variable("XDG_CACHE_HOME", ""), set_variable("HOME", "");
  EXPECT_EQ(cache_folder(), "");
  EXPECT_NE(cache_folder_reason(), "");
  write(folder() / "file", "");
  set_variable("TILEWISE_CACHE_DIR", (folder() / "file" / "below").string());
  EXPECT_EQ(cache_folder_reason(), (folder() / "file").string() + ": not a folder");
}

TEST_F(DiskCache, LockExcludesAndLeavesNothing) {
  const std::string key(64, 'a');
  std::atomic<int> inside{0}, most{0}, entered{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const KeyLock lock(key, 60);
      most = std::max(most.load(), ++inside);
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      ++entered, --inside;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(entered, 8);
  EXPECT_EQ(most, 1);
  EXPECT_TRUE(fs::is_empty(cache() / "locks"));
}

TEST_F(DiskCache, LockIsNotWaitedForForEver) {
  const std::string key(64, 'a');
  const KeyLock held(key, 60);
  const KeyLock late(key, 0.05);  // comes back without the lock
  EXPECT_TRUE(fs::exists(cache() / "locks" / (key + ".lock")));
}

TEST_F(DiskCache, AnswersLastAsLongAsTheFile) {
  write(folder() / "program", "one");
  int asked = 0;
  const auto ask = [&] {
    return remembered_answer(folder() / "program", "version", [&] { return std::to_string(++asked); });
  };
  EXPECT_EQ(ask(), "1");
  EXPECT_EQ(ask(), "1");
  EXPECT_EQ(remembered_answer(folder() / "program", "other", [] { return std::string("x"); }), "x");
  write(folder() / "program", "longer");
  EXPECT_EQ(ask(), "2");
  for (const auto& entry : fs::directory_iterator(cache() / "answers")) write(entry.path(), "damaged\n");
  EXPECT_EQ(ask(), "3");
  EXPECT_EQ(remembered_answer(folder() / "absent", "version", [] { return std::string("y"); }), "y");
}

}  // namespace
}  // namespace tilewise::jit
