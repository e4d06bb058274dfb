// A folder, a clean environment and compilers made of shell scripts for each test.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "jit/files.hpp"
#include "jit/kernel_cache.hpp"
#include "tilewise/error.hpp"

namespace tilewise::jit {

/// Every test has a folder and a cache folder of its own, none of the caller's TILEWISE_ variables, and a process that
/// knows no kernels yet.
class JitTest : public ::testing::Test {
 protected:
  JitTest();
  ~JitTest() override;

  /// Until the test ends; an empty value unsets.
  void set_variable(const std::string& name, const std::string& value);
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_.path(); }
  [[nodiscard]] std::filesystem::path cache() const { return folder() / "cache"; }
  /// The kernel files of the cache.
  [[nodiscard]] std::vector<std::filesystem::path> kernel_files() const;

  void write(const std::filesystem::path& path, std::string_view text) const;
  [[nodiscard]] std::string read(const std::filesystem::path& path) const;
  /// An executable shell script that answers --version and else runs `body`, where each run adds a line to runs().
  std::string make_compiler(const std::string& name, const std::string& body,
                            const std::string& version = "fake 1.2 (made for a test)");
  [[nodiscard]] std::size_t runs() const;

 private:
  TemporaryFolder folder_;
  std::map<std::string, std::optional<std::string>> former_;
};

/// The message of the Error that `action` throws, which must have this code.
std::string error_of(ErrorCode code, const std::function<void()>& action);

/// A kernel for the host that doubles a number, told apart by `tag`.
KernelSource doubling_kernel(const std::string& tag = "");

inline const Target kHost{TargetKind::host, "host"};

}  // namespace tilewise::jit
