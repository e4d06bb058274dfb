// Which compilers are on this machine. Versions are asked of the compilers themselves, in child processes, and the
// answers kept on disk: opening NVRTC takes 40 to 120 ms, a clang's --version 20 ms.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/message.hpp"
#include "jit/compiler_steps.hpp"
#include "jit/cuda_driver.hpp"
#include "jit/disk_cache.hpp"
#include "jit/files.hpp"
#include "jit/search_paths.hpp"
#include "jit/trust.hpp"

namespace tilewise::jit {
namespace {

namespace fs = std::filesystem;
constexpr double kVersionLimitSeconds = 20;

std::string to_string(Version version) { return core::concat(version.major, ".", version.minor); }

/// The first "12.2" in the text that stands outside parentheses; zeros where there is none.
Version parse_version(std::string_view text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    const bool begins = i == 0 || text[i - 1] == ' ';
    if (depth != 0 || !begins || text[i] < '0' || text[i] > '9') continue;
    char* end = nullptr;
    const std::string rest(text.substr(i));
    const long major = std::strtol(rest.c_str(), &end, 10);
    const long minor = *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
    return {static_cast<int>(major), static_cast<int>(minor)};
  }
  return {};
}

/// The first line of PROGRAM --version; empty where the program does not run.
std::string ask_program_version(const fs::path& program) {
  return remembered_answer(program, "--version", [&program] {
    const ChildResult result = run_child({program.string(), "--version"}, {}, {}, kVersionLimitSeconds);
    return result.succeeded() ? result.output.substr(0, result.output.find('\n')) : std::string();
  });
}

/// The version of an NVRTC or hipRTC ("13.0"). Empty, with the reason appended to `reason`, where it does not say.
std::string ask_library_version(const char* interface, const fs::path& library, std::string& reason) {
  return remembered_answer(library, interface, [&] {
    CompilerRequest request;
    request.interface = interface;
    request.library = library.string();
    const CompilerReply reply = ask_compiler_process(request, kVersionLimitSeconds);
    if (!reply.error.empty()) reason += core::concat(reason.empty() ? "" : "; ", library.string(), ": ", reply.error);
    return reply.error.empty() ? reply.version : std::string();
  });
}

std::string joined(const std::vector<fs::path>& folders) {
  std::string text;
  for (const fs::path& folder : folders) text += core::concat(text.empty() ? "" : ", ", folder.string());
  return text.empty() ? "no folder" : text;
}

/// Files `prefix` or `prefix.NUMBER` of the folders; of names for one file, the shortest.
std::vector<fs::path> find_libraries(const std::vector<fs::path>& folders, const std::string& prefix) {
  std::vector<fs::path> found, real;
  std::error_code error;
  for (const fs::path& folder : folders) {
    std::vector<fs::path> here;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (name.starts_with(prefix) && (name.size() == prefix.size() || name[prefix.size()] == '.'))
        here.push_back(it->path());
    }
    std::ranges::sort(here, {}, [](const fs::path& path) { return std::pair(path.string().size(), path); });
    for (const fs::path& path : here) {
      const fs::path canonical = fs::canonical(path, error);
      if (error || std::ranges::find(real, canonical) != real.end()) continue;
      real.push_back(canonical);
      found.push_back(path);
    }
  }
  return found;
}

/// The file that a variable names, or those in the folder it names.
std::vector<fs::path> named_libraries(const std::string& named, const std::string& prefix) {
  std::error_code error;
  if (fs::is_directory(named, error)) return find_libraries({named}, prefix);
  return fs::exists(named, error) ? std::vector<fs::path>{named} : std::vector<fs::path>{};
}

std::vector<fs::path> nvrtc_folders() {
  std::vector<fs::path> folders;
  for (const fs::path& packages : package_folders()) {
    for (const char* name : {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"}) {
      std::error_code error;
      if (fs::is_directory(packages / name, error)) folders.push_back(packages / name);
    }
  }
  std::ranges::copy(library_folders(), std::back_inserter(folders));
  return folders;
}

/// Those that may be opened; why others may not is added to `ignored`.
std::vector<fs::path> trusted(std::vector<fs::path> libraries, std::string& ignored) {
  std::erase_if(libraries, [&ignored](const fs::path& library) {
    const std::string fault = distrust_program(library);
    if (!fault.empty()) add_sentence(ignored, fault);
    return !fault.empty();
  });
  return libraries;
}

CompilerSearch none(std::string reason, const std::string& ignored = {}) {
  if (!ignored.empty()) add_sentence(reason, "ignored: " + ignored);
  return {std::nullopt, std::move(reason), ignored};
}

}  // namespace

std::optional<std::size_t> choose_nvrtc(std::span<const Version> versions, Version driver) {
  const bool any_fits = driver == Version{};
  const auto rank = [&](Version version) { return std::pair(any_fits || version <= driver, version); };
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < versions.size(); ++i) {
    const bool refused = versions[i] == Version{} || (!any_fits && versions[i].major > driver.major);
    if (!refused && (!best || rank(versions[i]) > rank(versions[*best]))) best = i;
  }
  return best;
}

CompilerSearch find_nvrtc() {
  constexpr const char* kPrefix = "libnvrtc.so";
  std::string reason, ignored;
  if (find_compiler_process(reason).empty()) return none(reason);
  const std::string named = environment_variable("TILEWISE_NVRTC");
  const std::vector<fs::path> folders = named.empty() ? nvrtc_folders() : std::vector<fs::path>{named};
  const std::vector<fs::path> libraries =
      trusted(named.empty() ? find_libraries(folders, kPrefix) : named_libraries(named, kPrefix), ignored);
  if (libraries.empty()) {
    return none(core::concat("NVRTC (", kPrefix, ") not found in ", joined(folders),
                             "; pip install nvidia-cuda-nvrtc brings it, TILEWISE_NVRTC names one"),
                ignored);
  }
  std::vector<Version> versions;
  for (const fs::path& library : libraries) {
    versions.push_back(parse_version(ask_library_version("nvrtc", library, reason)));
  }
  const int number = cuda_driver_version();
  const Version driver{number / 1000, number % 1000 / 10};
  if (const auto chosen = choose_nvrtc(versions, driver)) {
    const std::string name = "nvrtc " + to_string(versions[*chosen]);
    return {Compiler{CompilerKind::nvrtc, name, name, libraries[*chosen].string()}, {}, ignored};
  }
  for (std::size_t i = 0; i < libraries.size(); ++i) {
    if (versions[i] == Version{}) continue;
    reason += core::concat(reason.empty() ? "" : "; ", libraries[i].string(), ": NVRTC ", to_string(versions[i]),
                           " is newer than the driver, which knows CUDA ", to_string(driver));
  }
  return none(reason, ignored);
}

CompilerSearch find_clang() {
  constexpr int kOldest = 19;
  const std::string named = environment_variable("TILEWISE_CLANG");
  if (named == "none") return none("clang: TILEWISE_CLANG=none");
  std::vector<std::string> candidates{named};
  if (named.empty()) {
    const std::string rocm = environment_variable("ROCM_PATH");
    candidates = {"clang++-22",
                  "clang++-21",
                  "clang++-20",
                  "clang++-19",
                  "clang++",
                  "clang",
                  (rocm.empty() ? "/opt/rocm" : rocm) + "/llvm/bin/clang++"};
  }
  std::string reason, looked, ignored;
  for (const std::string& candidate : candidates) {
    looked += core::concat(looked.empty() ? "" : ", ", candidate);
    const fs::path program = find_program(candidate, ignored);
    if (program.empty()) continue;
    const std::string text = ask_program_version(program);
    const Version version = parse_version(text);
    std::error_code error;
    if (text.find("clang version") == std::string::npos || version.major < kOldest) {
      reason +=
          core::concat("; ", program.string(), ": version must be >= ", kOldest, " (got ", core::quoted(text), ")");
    } else if (find_program((fs::canonical(program, error).parent_path() / "lld").string(), ignored).empty() &&
               find_program("lld", ignored).empty()) {
      reason += core::concat("; ", program.string(), ": needs lld beside it (Debian: lld-", version.major, ")");
    } else {
      return {Compiler{CompilerKind::clang, "clang " + to_string(version), text, program.string()}, {}, ignored};
    }
  }
  return none(core::concat("clang ", kOldest, " or newer not found as ", looked, reason,
                           named.empty() ? " (TILEWISE_CLANG names one)" : " (TILEWISE_CLANG)"),
              ignored);
}

CompilerSearch find_hiprtc() {
  std::string reason, ignored;
  if (find_compiler_process(reason).empty()) return none(reason);
  const std::string named = environment_variable("TILEWISE_HIPRTC");
  std::vector<fs::path> folders = library_folders(), libraries;
  // hipRTC is a library of its own since ROCm 5.3, and part of the runtime before.
  for (const char* prefix : {"libhiprtc.so", "libamdhip64.so"}) {
    std::ranges::copy(named.empty() ? find_libraries(folders, prefix) : named_libraries(named, prefix),
                      std::back_inserter(libraries));
  }
  libraries = trusted(std::move(libraries), ignored);
  if (libraries.empty()) {
    return none(core::concat("hipRTC (libhiprtc.so, libamdhip64.so) not found in ",
                             named.empty() ? joined(folders) : named, " (TILEWISE_HIPRTC names one)"),
                ignored);
  }
  for (const fs::path& library : libraries) {
    const std::string version = ask_library_version("hiprtc", library, reason);
    if (version.empty()) continue;
    const std::string name = "hiprtc " + version;
    return {Compiler{CompilerKind::hiprtc, name, name, library.string()}, {}, ignored};
  }
  return none(reason, ignored);
}

CompilerSearch find_host_compiler() {
  const std::string named = environment_variable("TILEWISE_CXX");
  std::vector<std::string> candidates{named};
  if (named.empty()) candidates = {"c++", "g++", "clang++"};
  std::string looked, ignored;
  for (const std::string& candidate : candidates) {
    looked += core::concat(looked.empty() ? "" : ", ", candidate);
    const fs::path program = find_program(candidate, ignored);
    const std::string text = program.empty() ? std::string() : ask_program_version(program);
    if (text.empty()) continue;
    const bool clang = text.find("clang") != std::string::npos;
    const std::string name = core::concat(clang ? "clang " : "g++ ", to_string(parse_version(text)));
    return {Compiler{CompilerKind::host, name, text, program.string()}, {}, ignored};
  }
  return none(core::concat("no C++ compiler that runs found as ", looked,
                           named.empty() ? " (TILEWISE_CXX names one)" : " (TILEWISE_CXX)"),
              ignored);
}

CompilerSearch find_compiler(TargetKind kind) {
  if (kind == TargetKind::cuda) return find_nvrtc();
  if (kind == TargetKind::host) return find_host_compiler();
  CompilerSearch clang = find_clang();
  if (clang.compiler) return clang;
  CompilerSearch hiprtc = find_hiprtc();
  if (!hiprtc.compiler) hiprtc.reason = clang.reason + "; " + hiprtc.reason;
  return hiprtc;
}

}  // namespace tilewise::jit
