// Looks at folders only; nothing is opened or run here.
#include "jit/search_paths.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <system_error>

#include "jit/files.hpp"
#include "jit/trust.hpp"

namespace tilewise::jit {
namespace {

namespace fs = std::filesystem;

#if defined(__aarch64__)
constexpr const char *kSystemLibraries = "/usr/lib/aarch64-linux-gnu", *kToolkitLibraries = "targets/sbsa-linux/lib";
#else
constexpr const char *kSystemLibraries = "/usr/lib/x86_64-linux-gnu", *kToolkitLibraries = "targets/x86_64-linux/lib";
#endif

/// What add_package_folders() was told; replaced whole and never freed, so that readers need no lock.
constinit std::atomic<const std::vector<std::string>*> g_told{nullptr};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t start = 0; start <= list.size();) {
    const std::size_t end = std::min(list.find(':', start), list.size());
    if (end > start) parts.push_back(list.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

void add_folder(std::vector<fs::path>& folders, const fs::path& folder) {
  std::error_code error;
  if (!folder.empty() && fs::is_directory(folder, error) && std::ranges::find(folders, folder) == folders.end()) {
    folders.push_back(folder);
  }
}

/// The folders `parent/prefix*`, last name first (cuda-13 before cuda-12).
std::vector<fs::path> folders_like(const fs::path& parent, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with(prefix)) found.push_back(it->path());
  }
  std::ranges::sort(found, std::ranges::greater{});
  return found;
}

void add_environment(std::vector<fs::path>& folders, const fs::path& prefix) {
  for (const fs::path& python : folders_like(prefix / "lib", "python3")) add_folder(folders, python / "site-packages");
}

}  // namespace

void add_sentence(std::string& text, const std::string& sentence) {
  if (text.find(sentence) == std::string::npos) text += (text.empty() ? "" : "; ") + sentence;
}

fs::path find_program(const std::string& name, std::string& ignored) {
  const auto runs = [&ignored](const fs::path& path) {
    std::error_code error;
    if (!fs::is_regular_file(path, error) || access(path.c_str(), X_OK) != 0) return false;
    const std::string fault = distrust_program(path);
    if (!fault.empty()) add_sentence(ignored, fault);
    return fault.empty();
  };
  if (name.find('/') != std::string::npos) return runs(name) ? fs::path(name) : fs::path();
  for (const std::string& folder : split(environment_variable("PATH"))) {
    if (!name.empty() && runs(fs::path(folder) / name)) return fs::path(folder) / name;
  }
  return {};
}

fs::path own_folder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || !info.dli_fname) return {};
  std::error_code error;
  // The name of a program is what it was started by, which may be a word found in PATH.
  fs::path file = info.dli_fname;
  if (!file.has_parent_path() || !fs::exists(file, error)) file = fs::read_symlink("/proc/self/exe", error);
  return fs::canonical(file, error).parent_path();
}

void add_package_folders(const std::vector<std::string>& folders) {
  const std::vector<std::string>* known = g_told.load(std::memory_order_acquire);
  for (;;) {
    auto fresh = std::make_unique<std::vector<std::string>>(known ? *known : std::vector<std::string>());
    for (const std::string& folder : folders) {
      if (std::ranges::find(*fresh, folder) == fresh->end()) fresh->push_back(folder);
    }
    if (known && fresh->size() == known->size()) return;
    if (g_told.compare_exchange_weak(known, fresh.get(), std::memory_order_acq_rel)) {
      (void)fresh.release();
      return;
    }
  }
}

std::vector<fs::path> package_folders() {
  std::vector<fs::path> folders;
  if (const auto* told = g_told.load(std::memory_order_acquire)) {
    for (const std::string& folder : *told) add_folder(folders, folder);
  }
  const fs::path own = own_folder();
  const fs::path beside = own.parent_path().parent_path();  // an installed package's library is in tilewise/lib
  if (beside.filename() == "site-packages") add_folder(folders, beside);
  add_environment(folders, own.parent_path());  // PREFIX/bin/tilewise or PREFIX/lib/libtilewise.so
  add_environment(folders, environment_variable("VIRTUAL_ENV"));
  add_environment(folders, environment_variable("CONDA_PREFIX"));
  return folders;
}

std::vector<fs::path> library_folders() {
  std::vector<fs::path> folders;
  for (const std::string& folder : split(environment_variable("LD_LIBRARY_PATH"))) add_folder(folders, folder);
  for (const char* name : {"CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"}) {
    const fs::path base = environment_variable(name);
    if (base.empty()) continue;
    for (const char* folder : {"lib64", kToolkitLibraries, "lib"}) add_folder(folders, base / folder);
  }
  for (const char* folder : {kSystemLibraries, "/usr/lib64", "/usr/lib", "/usr/local/lib"}) {
    add_folder(folders, folder);
  }
  std::vector<fs::path> toolkits{"/usr/local/cuda", "/opt/cuda"};
  std::ranges::copy(folders_like("/usr/local", "cuda-"), std::back_inserter(toolkits));
  for (const fs::path& toolkit : toolkits) {
    for (const char* folder : {"lib64", kToolkitLibraries}) add_folder(folders, toolkit / folder);
  }
  const std::string rocm = environment_variable("ROCM_PATH");
  add_folder(folders, fs::path(rocm.empty() ? "/opt/rocm" : rocm) / "lib");
  return folders;
}

std::string search_fingerprint() {
  constexpr std::array kVariables = {
      "PATH",      "TILEWISE_CXX", "TILEWISE_CLANG",  "TILEWISE_HIPRTC", "TILEWISE_NVRTC", "TILEWISE_COMPILER",
      "CUDA_HOME", "CUDA_PATH",    "LD_LIBRARY_PATH", "VIRTUAL_ENV",     "CONDA_PREFIX",   "ROCM_PATH"};
  std::string text;
  for (const char* name : kVariables) text += environment_variable(name) + '\n';
  if (const auto* told = g_told.load(std::memory_order_acquire)) {
    for (const std::string& folder : *told) text += folder + '\n';
  }
  return text;
}

}  // namespace tilewise::jit
