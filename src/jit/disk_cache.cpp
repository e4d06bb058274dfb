// Folders: kernels/KEY.kernel, locks/KEY.lock (only while someone compiles), answers/HASH.txt; tuned_schedules.cpp's
// tuned/DEVICE.txt lies beside them.
#include "jit/disk_cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>

#include "core/message.hpp"
#include "jit/files.hpp"
#include "jit/hash.hpp"
#include "jit/trust.hpp"

namespace tilewise::jit {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kSuffix = ".kernel", kUnfinished = ".tmp";
constexpr auto kUnfinishedAge = std::chrono::hours(1);

fs::path subfolder(const char* name) {
  const fs::path folder = cache_folder();
  return folder.empty() ? folder : folder / name;
}

/// None where somebody else may write there: nothing is read from such a folder, nor anything put in their way.
fs::path trusted_subfolder(const char* name) {
  fs::path folder = subfolder(name);
  return folder.empty() || distrust(folder).empty() ? folder : fs::path();
}

fs::path kernel_path(const fs::path& folder, const std::string& key) { return folder / (key + std::string(kSuffix)); }

struct File {
  fs::path path;
  std::uintmax_t bytes;
  struct timespec used;
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> age_key() const { return {used.tv_sec, used.tv_nsec}; }
};

std::vector<File> kernel_files(std::string_view suffix) {
  std::vector<File> files;
  std::error_code error;
  for (fs::directory_iterator it(subfolder("kernels"), error), end; !error && it != end; it.increment(error)) {
    struct stat status{};
    if (it->path().extension() != suffix || stat(it->path().c_str(), &status) != 0) continue;
    files.push_back({it->path(), static_cast<std::uintmax_t>(status.st_size), status.st_mtim});
  }
  return files;
}

std::chrono::system_clock::time_point time_point(const timespec& time) {
  return std::chrono::system_clock::from_time_t(time.tv_sec);
}

/// Removes the files used longest ago until the rest is within the limit, and what a process that died left
/// half-written.
void evict(std::uintmax_t limit, const fs::path& newest) {
  std::error_code ignored;
  for (const File& file : kernel_files(kUnfinished)) {
    if (std::chrono::system_clock::now() - time_point(file.used) > kUnfinishedAge) fs::remove(file.path, ignored);
  }
  std::vector<File> files = kernel_files(kSuffix);
  std::ranges::sort(files, {}, &File::age_key);
  std::uintmax_t total = 0;
  for (const File& file : files) total += file.bytes;
  for (const File& file : files) {
    if (total <= limit) break;
    if (file.path == newest) continue;
    fs::remove(file.path, ignored);
    total -= file.bytes;
  }
}

/// Whoever held a lock may have removed its file between another's open and flock; the name then means another file.
bool is_named(int file, const fs::path& path) {
  struct stat held{}, named{};
  return fstat(file, &held) == 0 && stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino;
}

}  // namespace

fs::path cache_folder() {
  if (const std::string named = environment_variable("TILEWISE_CACHE_DIR"); !named.empty()) return named;
  if (const std::string base = environment_variable("XDG_CACHE_HOME"); base.starts_with('/')) {
    return fs::path(base) / "tilewise";
  }
  const std::string home = environment_variable("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "tilewise";
}

std::string cache_folder_reason() {
  if (cache_folder().empty()) return "none of TILEWISE_CACHE_DIR, XDG_CACHE_HOME and HOME is set";
  std::error_code error;
  fs::path folder = fs::absolute(cache_folder(), error);
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  if (!fs::is_directory(folder, error)) return core::concat(folder.string(), ": not a folder");
  if (access(folder.c_str(), W_OK | X_OK) != 0) return core::concat(folder.string(), ": ", std::strerror(errno));
  const std::string fault = distrust(subfolder("kernels"));
  return fault.empty() ? fault : fault + "; kernels there are ignored";
}

bool cache_is_ignored() {
  std::error_code error;
  const fs::path kernels = trusted_subfolder("kernels");
  return !cache_folder_reason().empty() && !(fs::is_directory(kernels, error) && !fs::is_empty(kernels, error));
}

std::uintmax_t cache_size_limit() {
  constexpr std::uintmax_t kDefaultMegabytes = 1024, kMostMegabytes = std::uintmax_t{1} << 30;
  const std::string text = environment_variable("TILEWISE_CACHE_SIZE_MB");
  std::uintmax_t megabytes = kDefaultMegabytes;
  if (!text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), megabytes);
    if (error != std::errc{} || end != text.data() + text.size() || megabytes > kMostMegabytes) {
      core::invalid_argument("TILEWISE_CACHE_SIZE_MB: must be an integer in [0, ", kMostMegabytes, "] (got ",
                             core::quoted(text), ")");
    }
  }
  return megabytes * 1'000'000;
}

std::optional<KernelFile> load_from_disk(const std::string& key) {
  const fs::path folder = trusted_subfolder("kernels");
  const fs::path path = kernel_path(folder, key);
  if (folder.empty() || !distrust(path).empty()) return std::nullopt;
  const auto bytes = read_file(path);
  if (!bytes) return std::nullopt;
  std::string fault;
  std::optional<KernelFile> file = decode(*bytes, fault);
  if (!file || file->key != key) return std::nullopt;
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // used now; fails where the folder is read-only, which is fine
  return file;
}

void store_on_disk(const KernelFile& file) {
  const std::uintmax_t limit = cache_size_limit();
  const std::vector<std::byte> bytes = encode(file);
  const fs::path folder = trusted_subfolder("kernels");
  if (bytes.size() > limit || !make_folder(folder)) return;
  const fs::path path = kernel_path(folder, file.key);
  if (write_file_atomically(path, bytes).empty()) evict(limit, path);
}

KeyLock::KeyLock(const std::string& key, double limit_seconds) {
  const fs::path folder = trusted_subfolder("locks");
  if (!make_folder(folder)) return;
  path_ = folder / (key + ".lock");
  const auto begin = std::chrono::steady_clock::now();
  const auto limit = std::chrono::duration<double>(limit_seconds);
  while (std::chrono::steady_clock::now() - begin < limit) {
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file_ < 0) return;
    const int error = flock(file_, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (error == 0 && is_named(file_, path_)) return;
    close(file_);
    file_ = -1;
    if (error != 0 && error != EWOULDBLOCK && error != EINTR) return;  // a file system without locks
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

KeyLock::~KeyLock() {
  if (file_ < 0) return;
  unlink(path_.c_str());
  // Unlocked by name and not only closed: a child forked meanwhile holds the same open file.
  flock(file_, LOCK_UN);
  close(file_);
}

std::string remembered_answer(const fs::path& file, const std::string& question,
                              const std::function<std::string()>& ask) {
  struct stat status{};
  const fs::path folder = trusted_subfolder("answers");
  if (folder.empty() || stat(file.c_str(), &status) != 0) return ask();
  std::error_code error;
  Sha256 hash;
  hash.update_field(question);
  hash.update_field(fs::canonical(file, error).string());
  hash.update_field(std::to_string(status.st_size));
  hash.update_field(core::concat(status.st_mtim.tv_sec, ".", status.st_mtim.tv_nsec));
  hash.update_field(core::concat(status.st_dev, ".", status.st_ino));
  const fs::path place = folder / (to_hex(hash.finish()) + ".txt");
  if (const auto bytes = distrust(place).empty() ? read_file(place) : std::nullopt) {
    // The answer and its checksum.
    const std::string text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    const std::string answer = text.substr(0, text.find('\n'));
    if (!answer.empty() && text == answer + "\n" + to_hex(sha256(as_bytes(answer))) + "\n") return answer;
  }
  std::string answer = ask();
  if (!answer.empty() && answer.find('\n') == std::string::npos && make_folder(folder)) {
    (void)write_file_atomically(place, as_bytes(answer + "\n" + to_hex(sha256(as_bytes(answer))) + "\n"));
  }
  return answer;
}

std::vector<CachedKernel> list_disk_cache() {
  std::vector<File> files = kernel_files(kSuffix);
  std::ranges::sort(files, std::ranges::greater{}, &File::age_key);
  std::vector<CachedKernel> kernels;
  for (const File& file : files) {
    CachedKernel kernel{file.path.stem().string(), file.bytes, time_point(file.used), {}, {}, {}, {}};
    const auto bytes = read_file(file.path);
    if (!bytes) kernel.fault = "can't be read";
    if (const auto decoded = bytes ? decode(*bytes, kernel.fault) : std::nullopt) {
      if (decoded->key != kernel.key) kernel.fault = "under another's name";
      kernel.architecture = decoded->target.architecture;
      kernel.symbol = decoded->kernel.symbol;
      kernel.compiler = decoded->kernel.compiler;
    }
    if (const std::string fault = distrust(file.path); !fault.empty()) kernel.fault = "not trusted: " + fault;
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

std::size_t clear_disk_cache() {
  const std::size_t count = kernel_files(kSuffix).size();
  for (const char* name : {"kernels", "locks", "answers", "sources", "tuned"}) {
    std::error_code error;
    const fs::path folder = subfolder(name);
    if (!folder.empty()) fs::remove_all(folder, error);
    if (error) throw Error(ErrorCode::runtime, core::concat(folder.string(), ": ", error.message()));
  }
  return count;
}

}  // namespace tilewise::jit
