// Asks the processor (cpuid) and the system (sysconf, /sys).
#include "machine.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

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

}  // namespace tilewise::tools
