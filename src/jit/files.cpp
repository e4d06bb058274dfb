// Plain system calls where the C++ library can't say why something failed.
#include "jit/files.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/message.hpp"

namespace tilewise::jit {
namespace fs = std::filesystem;

std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::optional<std::vector<std::byte>> read_file(const fs::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  struct stat status{};
  std::vector<std::byte> bytes;
  bool good = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  if (good) bytes.resize(static_cast<std::size_t>(status.st_size));
  for (std::size_t done = 0; good && done < bytes.size();) {
    const ssize_t count = read(file, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    good = count > 0;
    if (good) done += static_cast<std::size_t>(count);
  }
  close(file);
  if (!good) return std::nullopt;
  return bytes;
}

std::string write_file_atomically(const fs::path& path, std::span<const std::byte> bytes) {
  static constinit std::atomic<unsigned> number{0};
  const fs::path fresh =
      path.parent_path() / core::concat(path.filename().string(), ".", getpid(), ".", number.fetch_add(1), ".tmp");
  const auto failed = [&fresh](const char* what) {
    const std::string reason = core::concat(what, " ", fresh.string(), ": ", std::strerror(errno));
    unlink(fresh.c_str());
    return reason;
  };
  const int file = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return failed("create");
  while (!bytes.empty()) {
    const ssize_t count = write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      close(file);
      return failed("write");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  if (close(file) != 0) return failed("write");
  if (rename(fresh.c_str(), path.c_str()) != 0) return failed("rename");
  return {};
}

bool make_folder(const fs::path& folder) {
  std::error_code error;
  if (folder.empty() || fs::is_directory(folder, error)) return !folder.empty();
  const fs::path whole = fs::absolute(folder, error);
  return make_folder(whole.parent_path()) && (mkdir(whole.c_str(), S_IRWXU) == 0 || errno == EEXIST);
}

TemporaryFolder::TemporaryFolder() {
  const std::string base = environment_variable("TMPDIR");
  for (const std::string& folder : {base, std::string("/tmp")}) {
    std::string name = folder + "/tilewise-XXXXXX";
    if (folder.empty() || !mkdtemp(name.data())) continue;
    path_ = name;
    return;
  }
  throw Error(ErrorCode::runtime, core::concat("TMPDIR: must name a folder for temporary files (got ",
                                               core::quoted(base), ", and /tmp: ", std::strerror(errno), ")"));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!kept_) fs::remove_all(path_, ignored);
}

}  // namespace tilewise::jit
