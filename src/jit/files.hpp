// Files and folders for the cache and the compilers: whole reads, atomic writes, private temporary folders.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tilewise::jit {

/// An environment variable; empty where it is not set.
[[nodiscard]] std::string environment_variable(const char* name);

/// The whole file; none where it can't be read.
[[nodiscard]] std::optional<std::vector<std::byte>> read_file(const std::filesystem::path& path);
[[nodiscard]] std::span<const std::byte> as_bytes(std::string_view text);

/// Writes a new file beside `path` and renames it over `path`, so that readers see the old file or the new one whole.
/// Returns why it could not, or an empty text.
[[nodiscard]] std::string write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);

/// Makes the folder, and those above it that lack, for this user alone. False where it can't be, which errno explains.
[[nodiscard]] bool make_folder(const std::filesystem::path& folder);

/// A new folder that only this user may read, removed with all it holds unless kept.
class TemporaryFolder {
 public:
  /// Under TMPDIR, else /tmp. Throws Error (runtime) where none can be made.
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  bool kept_ = false;
};

}  // namespace tilewise::jit
