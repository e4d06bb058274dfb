// The table of architectures, from the vendors' data sheets.
#include "gpu/architectures.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/message.hpp"
#include "core/spelling.hpp"

namespace tilewise::gpu {
namespace {

// Shared memory a block may ask for: 1 KB less than a multiprocessor has on NVIDIA's. RDNA's multiprocessors are work
// group processors of two compute units, which is what HIP counts. Rates are those that mma.sync, MFMA and WMMA reach
// with sums in single precision. Where products differ in memory, the bandwidth is the fastest one's.
constexpr std::array<Architecture, 25> kArchitectures{{
    {"sm_80", Family::sm80, 108, 163 << 10, 1.41, 1024, 2039},                     // A100
    {"sm_86", Family::sm80, 84, 99 << 10, 1.74, 512, 696},                         // A40
    {"sm_87", Family::sm80, 16, 163 << 10, 1.3, 512, 205},                         // Orin
    {"sm_89", Family::sm80, 142, 99 << 10, 2.52, 512, 864},                        // L40S
    {"sm_90", Family::sm80, 132, 227 << 10, 1.98, 1024, 4800},                     // H200, H100
    {"sm_90a", Family::sm80, 132, 227 << 10, 1.98, 1024, 4800},                    // H200, H100
    {"sm_100", Family::sm80, 148, 227 << 10, 1.96, 1024, 8000, "tcgen05"},         // B200
    {"sm_103", Family::sm80, 148, 227 << 10, 1.96, 1024, 8000, "tcgen05"},         // B300
    {"sm_110", Family::sm80, 20, 227 << 10, 1.57, 1024, 273, "tcgen05"},           // Thor
    {"sm_120", Family::sm80, 170, 99 << 10, 2.41, 512, 1792, "block-scaled mma"},  // RTX 5090
    {"sm_121", Family::sm80, 48, 99 << 10, 2.42, 512, 273, "block-scaled mma"},    // GB10
    {"gfx90a", Family::cdna, 110, 64 << 10, 1.7, 512, 1638},                       // MI250X, one of its two devices
    {"gfx942", Family::cdna, 304, 64 << 10, 2.1, 1024, 5300},                      // MI300X
    {"gfx950", Family::cdna, 256, 160 << 10, 2.4, 2048, 8000},                     // MI355X
    {"gfx1100", Family::rdna, 48, 64 << 10, 2.5, 512, 960},                        // Radeon RX 7900 XTX
    {"gfx1101", Family::rdna, 30, 64 << 10, 2.43, 512, 624},                       // Radeon RX 7800 XT
    {"gfx1102", Family::rdna, 16, 64 << 10, 2.63, 512, 288},                       // Radeon RX 7600
    {"gfx1103", Family::rdna, 6, 64 << 10, 2.7, 512, 90},                          // Radeon 780M
    {"gfx1150", Family::rdna, 8, 64 << 10, 2.9, 512, 120},                         // Radeon 890M
    {"gfx1151", Family::rdna, 20, 64 << 10, 2.9, 512, 256},                        // Radeon 8060S
    {"gfx1152", Family::rdna, 4, 64 << 10, 3.0, 512, 120},                         // Radeon 860M
    {"gfx1153", Family::rdna, 2, 64 << 10, 2.9, 512, 120},                         // two work group processors
    {"gfx1200", Family::rdna4, 16, 64 << 10, 3.13, 1024, 320},                     // Radeon RX 9060 XT
    {"gfx1201", Family::rdna4, 32, 64 << 10, 2.97, 1024, 640},                     // Radeon RX 9070 XT
    // As announced of the MI450; how many multiprocessors and which clock make up its rate is a guess.
    {"gfx1250", Family::gfx1250, 256, 320 << 10, 2.4, 4096, 19600},
}};

/// GPUs that people ask for, and why no kernel here is for them.
struct Refused {
  std::string_view name, reason;
};
constexpr std::string_view kNoProducts = "its generation has no matrix instructions";
constexpr std::array<Refused, 7> kRefused{{
    {"gfx900", kNoProducts},
    {"gfx906", kNoProducts},
    {"gfx908", "its MFMA of bf16 has a depth of 4, where kernels here take that of gfx90a and later, 8 and 16"},
    {"gfx940", "it was a test part of gfx942"},
    {"gfx941", "it was a test part of gfx942"},
    {"gfx1010", kNoProducts},
    {"gfx1030", kNoProducts},
}};
const std::string_view* reason_against(std::string_view name) {
  const auto* found = std::ranges::find(kRefused, name, &Refused::name);
  return found == kRefused.end() ? nullptr : &found->reason;
}

/// The number in sm_121a or gfx1250, of which AMD's is hexadecimal; 0 for other words.
int number_of(std::string_view name) {
  const bool nvidia = name.starts_with("sm_"), amd = name.starts_with("gfx");
  if (!nvidia && !amd) return 0;
  const std::string digits(name.substr(3));
  char* end = nullptr;
  const long number = std::strtol(digits.c_str(), &end, nvidia ? 10 : 16);
  const std::string_view rest = end;
  const bool whole = rest.empty() || (nvidia && (rest == "a" || rest == "f"));
  return whole && number > 0 && number < 0xFFFF ? static_cast<int>(number) : 0;
}

/// Of the table's architectures with that prefix the one with the highest number.
const Architecture& newest(std::string_view prefix) {
  const Architecture* newest = nullptr;
  for (const Architecture& known : kArchitectures) {
    if (known.name.starts_with(prefix) && (newest == nullptr || number_of(known.name) > number_of(newest->name)))
      newest = &known;
  }
  return *newest;
}

/// Whether it names a GPU that came, or may come, after those of the table.
bool is_newer(std::string_view name) {
  const int number = number_of(name);
  return number > 0 && number > number_of(newest(name.substr(0, 3)).name);
}

}  // namespace

std::string unknown_gpu(std::string_view name) {
  if (const std::string_view* reason = reason_against(name)) {
    return core::concat(name, " is not supported: ", *reason);
  }
  const bool nvidia = name.starts_with("sm_");
  const std::string names = architecture_names(nvidia ? DeviceType::cuda : DeviceType::hip);
  if (!is_newer(name)) return core::concat("the GPU must be one of ", names, " (got ", name, ")");
  return core::concat(
      name, " is newer than this version of Tilewise, whose last is ", newest(name.substr(0, 3)).name,
      nvidia ? ": on such a GPU the portable kernels of cuda.sm80 run where its NVRTC knows it"
             : ": on such a GPU no kernel of this version runs, and tensors on the CPU are computed there");
}

const Architecture* find_architecture(std::string_view name) {
  const auto* found = std::ranges::find(kArchitectures, name, &Architecture::name);
  return found == kArchitectures.end() ? nullptr : found;
}

const Architecture& named_architecture(std::string_view name) {
  if (const Architecture* found = find_architecture(name)) return *found;
  // NVRTC's names of what an architecture alone, or its generation, has: portable kernels use none of it.
  if (name.starts_with("sm_") && (name.ends_with('a') || name.ends_with('f'))) {
    if (const Architecture* found = find_architecture(name.substr(0, name.size() - 1))) return *found;
  }
  if (is_newer(name) || reason_against(name) != nullptr) core::invalid_argument("target: ", unknown_gpu(name));
  std::vector<std::string_view> names;
  for (const Architecture& known : kArchitectures) names.push_back(known.name);
  core::refuse_word("target", name, names);
}

std::string architecture_names(DeviceType type) {
  std::string names;
  for (const Architecture& known : kArchitectures) {
    if (device_of(known) == type) core::append(names, core::concat(names.empty() ? "" : ", ", known.name));
  }
  return names;
}

DeviceType device_of(const Architecture& architecture) { return traits_of(architecture.family).device; }

core::DeviceDescription describe(const Architecture& architecture) {
  core::DeviceDescription description;
  description.device.type = device_of(architecture);
  description.architecture = architecture.name;
  description.multiprocessors = architecture.multiprocessors;
  description.gigahertz = architecture.gigahertz;
  description.shared_bytes = architecture.shared_bytes;
  description.matrix_rate = architecture.matrix_rate;
  description.memory_gigabytes_per_second = architecture.memory_gigabytes_per_second;
  return description;
}

bool has_family(const core::DeviceDescription& device, Family family) {
  if (family == Family::sm90) return device.architecture == "sm_90a";
  if (const Architecture* known = find_architecture(device.architecture)) return known->family == family;
  return device.device.type == DeviceType::cuda && family == Family::sm80;
}

}  // namespace tilewise::gpu
