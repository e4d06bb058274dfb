// Asks the processor (cpuid), the system (sysconf, /sys) and the dynamic loader.
#include "machine.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#if defined(__GLIBC__)
#include <link.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tilewise::tools {
namespace {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream stream(path);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::string path_of(void* library, const std::string& name) {
#if defined(__GLIBC__)
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && *map->l_name) return map->l_name;
#else
  static_cast<void>(library);
#endif
  return name;
}

}  // namespace

std::string processor_name() {
#if defined(__x86_64__)
  constexpr unsigned kFirstBrandLeaf = 0x80000002, kLastBrandLeaf = 0x80000004;
  if (__get_cpuid_max(0x80000000, nullptr) < kLastBrandLeaf) return "unknown";
  std::string name;
  for (unsigned leaf = kFirstBrandLeaf; leaf <= kLastBrandLeaf; ++leaf) {
    std::array<unsigned, 4> words{};
    __get_cpuid(leaf, &words[0], &words[1], &words[2], &words[3]);
    std::array<char, sizeof words> text{};
    std::memcpy(text.data(), words.data(), sizeof words);
    name.append(text.data(), strnlen(text.data(), text.size()));
  }
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name.empty() ? "unknown" : name;
#else
  return "unknown";
#endif
}

int allowed_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

std::int64_t memory_bytes() {
  return std::max<std::int64_t>(sysconf(_SC_PHYS_PAGES), 0) * std::max<std::int64_t>(sysconf(_SC_PAGESIZE), 0);
}

std::vector<GpuDevice> gpu_devices() {
  std::vector<GpuDevice> devices;
  std::error_code status;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices", status)) {
    const std::string vendor = first_line(entry.path() / "vendor"), type = first_line(entry.path() / "class");
    const bool computes = type.starts_with("0x03") || type.starts_with("0x12");  // display; processing accelerator
    if (!computes || (vendor != "0x10de" && vendor != "0x1002")) continue;
    devices.push_back({vendor == "0x10de" ? "NVIDIA" : "AMD", entry.path().filename().string()});
  }
  std::ranges::sort(devices, {}, &GpuDevice::address);
  return devices;
}

LibraryStatus find_library(const std::vector<std::string>& names) {
  LibraryStatus result{names.front(), false, {}};
  for (const std::string& name : names) {
    void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (library) {
      result = {name, true, path_of(library, name)};
      dlclose(library);
      return result;
    }
    const char* reason = dlerror();
    if (result.detail.empty()) result.detail = reason ? reason : "not found";
  }
  return result;
}

}  // namespace tilewise::tools
