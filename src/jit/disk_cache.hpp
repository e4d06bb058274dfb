// The compiled kernels on disk, shared by all processes of a user: TILEWISE_CACHE_DIR, by default under XDG_CACHE_HOME
// or ~/.cache. Nothing that goes wrong with it is an error: it only costs the caching.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/visibility.hpp"
#include "jit/kernel_file.hpp"

namespace tilewise::jit {

/// Where the cache is, whether it exists or not; empty where no variable and no home folder names a place.
[[nodiscard]] TILEWISE_INTERNAL std::filesystem::path cache_folder();
/// Why nothing is kept there and nothing loaded: it can't be written, or distrust() (trust.hpp) speaks against it.
/// Empty where all is well.
[[nodiscard]] TILEWISE_INTERNAL std::string cache_folder_reason();
/// Whether nothing can be loaded from there either, as from a folder that is only closed to writing.
[[nodiscard]] TILEWISE_INTERNAL bool cache_is_ignored();
/// TILEWISE_CACHE_SIZE_MB in bytes, default 1024 MB; 0: nothing is kept. Throws Error for another text.
[[nodiscard]] TILEWISE_INTERNAL std::uintmax_t cache_size_limit();

/// The kernel under `key` (64 hexadecimal digits), marked as used now. None where it is missing, damaged or foreign, or
/// where somebody else may have written it.
[[nodiscard]] std::optional<KernelFile> load_from_disk(const std::string& key);
/// Publishes `file` under its key by an atomic rename; then removes the kernels not used for longest until the folder
/// is within its limit.
void store_on_disk(const KernelFile& file);

/// Held by the one process that compiles a key while others wait. Waits at most `limit_seconds`; without a folder to
/// write to, or after that time, the work goes on without the lock: at worst a kernel is compiled twice.
class KeyLock {
 public:
  KeyLock(const std::string& key, double limit_seconds);
  ~KeyLock();
  KeyLock(const KeyLock&) = delete;
  KeyLock& operator=(const KeyLock&) = delete;

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

/// What a slow question about a file answered (a compiler's version), kept on disk for as long as the file's size and
/// time stay what they are. An empty answer is not kept.
[[nodiscard]] std::string remembered_answer(const std::filesystem::path& file, const std::string& question,
                                            const std::function<std::string()>& ask);

struct CachedKernel {
  std::string key;
  std::uintmax_t bytes = 0;
  std::chrono::system_clock::time_point last_used;
  std::string fault;  ///< why it can't be used; empty where it can
  std::string architecture, symbol, compiler;
};
/// Every kernel on disk, most recently used first.
[[nodiscard]] TILEWISE_INTERNAL std::vector<CachedKernel> list_disk_cache();
/// Removes every kernel and everything else that Tilewise keeps there; returns how many kernels there were. Throws
/// Error (runtime) where something can't be removed.
TILEWISE_INTERNAL std::size_t clear_disk_cache();

}  // namespace tilewise::jit
