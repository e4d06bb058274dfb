// cpuid, xgetbv and arch_prctl: what the processor has and the system lets us use.
#include "backends/cpu/cpu_features.hpp"

#include <cstdlib>

#include "core/spelling.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#endif

namespace tilewise::backends::cpu {
namespace {

constexpr std::array<std::string_view, kIsaCount> kNames = {"generic",  "avx2", "avx512",   "avx512_bf16",
                                                            "amx_bf16", "neon", "neon_bf16"};

std::array<IsaStatus, kIsaCount> all_missing(const char* reason) {
  std::array<IsaStatus, kIsaCount> result;
  for (int i = 0; i < kIsaCount; ++i)
    result[static_cast<std::size_t>(i)] = {static_cast<Isa>(i), i == 0, i == 0 ? "" : reason};
  return result;
}

#if defined(__x86_64__)

struct CpuidLeaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf cpuid(unsigned leaf, unsigned subleaf) {
  CpuidLeaf r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // leaves zeros where absent
  return r;
}

constexpr bool has_bit(unsigned word, int bit) { return ((word >> bit) & 1u) != 0; }

/// The register states the operating system saves (0 without OSXSAVE).
std::uint64_t saved_states() {
  if (!has_bit(cpuid(1, 0).ecx, 27)) return 0;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

/// Collects the missing parts of one instruction set into a sentence.
class Needs {
 public:
  void require(bool present, std::string_view what) {
    if (present) return;
    missing_ += missing_.empty() ? "this processor lacks " : ", ";
    missing_ += what;
  }
  void require_system(bool present, std::string_view what) {
    if (present || !missing_.empty()) return;
    missing_ = "the operating system does not save ";
    missing_ += what;
  }
  [[nodiscard]] IsaStatus status(Isa isa) const { return {isa, missing_.empty(), missing_}; }

 private:
  std::string missing_;
};

/// Linux hands out AMX tile data on request only (arch_prctl, once per process).
std::string request_amx() {
#if defined(__linux__)
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kTileData = 18;
  if (syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0) return {};
  return std::string("the system refused AMX tile data (arch_prctl: ") + std::strerror(errno) + ")";
#else
  return "AMX permission can be asked for on Linux only";
#endif
}

std::array<IsaStatus, kIsaCount> detect() {
  const CpuidLeaf leaf1 = cpuid(1, 0), leaf7 = cpuid(7, 0), leaf7_1 = cpuid(7, 1);
  const std::uint64_t states = saved_states();
  std::array<IsaStatus, kIsaCount> result = all_missing("this processor is not AArch64");

  Needs avx2;
  avx2.require(has_bit(leaf1.ecx, 28), "avx");
  avx2.require(has_bit(leaf7.ebx, 5), "avx2");
  avx2.require(has_bit(leaf1.ecx, 12), "fma");
  avx2.require(has_bit(leaf1.ecx, 29), "f16c");
  avx2.require_system((states & 0x6) == 0x6, "the ymm registers");
  result[1] = avx2.status(Isa::avx2);

  Needs avx512 = avx2;
  avx512.require(has_bit(leaf7.ebx, 16), "avx512f");
  avx512.require(has_bit(leaf7.ebx, 30), "avx512bw");
  avx512.require(has_bit(leaf7.ebx, 31), "avx512vl");
  avx512.require(has_bit(leaf7.ebx, 17), "avx512dq");
  avx512.require_system((states & 0xE6) == 0xE6, "the zmm registers");
  result[2] = avx512.status(Isa::avx512);

  Needs bf16 = avx512;
  bf16.require(has_bit(leaf7_1.eax, 5), "avx512_bf16");
  result[3] = bf16.status(Isa::avx512_bf16);

  Needs amx = bf16;
  amx.require(has_bit(leaf7.edx, 24), "amx_tile");
  amx.require(has_bit(leaf7.edx, 22), "amx_bf16");
  amx.require_system((states & 0x60000) == 0x60000, "the AMX tiles");
  result[4] = amx.status(Isa::amx_bf16);
  if (result[4].available) {
    result[4].reason = request_amx();
    result[4].available = result[4].reason.empty();
  }
  return result;
}

#elif defined(__aarch64__)

/// NEON is part of AArch64. bf16 is an extension, of which the system tells (HWCAP2_BF16; the older of its headers lack
/// the name).
std::array<IsaStatus, kIsaCount> detect() {
  std::array<IsaStatus, kIsaCount> result = all_missing("this processor is not x86-64");
  bool bf16 = false;
#if defined(__linux__)
  constexpr unsigned long kHwcap2Bf16 = 1ul << 14;
  bf16 = (getauxval(AT_HWCAP2) & kHwcap2Bf16) != 0;
#endif
  result[static_cast<std::size_t>(Isa::neon)] = {Isa::neon, true, {}};
  result[static_cast<std::size_t>(Isa::neon_bf16)] = {Isa::neon_bf16, bf16, bf16 ? "" : "this processor lacks bf16"};
  return result;
}

#else

std::array<IsaStatus, kIsaCount> detect() { return all_missing("this processor is neither x86-64 nor AArch64"); }

#endif

/// TILEWISE_CPU_ISA, or the last instruction set where it is not set.
Isa isa_cap() {
  const char* text = std::getenv("TILEWISE_CPU_ISA");
  if (!text || !*text) return static_cast<Isa>(kIsaCount - 1);
  for (int i = 0; i < kIsaCount; ++i) {
    if (kNames[static_cast<std::size_t>(i)] == text) return static_cast<Isa>(i);
  }
  core::refuse_word("TILEWISE_CPU_ISA", text, kNames);
}

}  // namespace

std::string_view to_string(Isa isa) noexcept { return kNames[static_cast<std::size_t>(isa)]; }

const std::array<IsaStatus, kIsaCount>& machine_isas() {
  static const std::array<IsaStatus, kIsaCount> status = detect();
  return status;
}

namespace {
/// Found while the library loads: see kMadeAtLoad in core/plan.cpp.
[[maybe_unused]] const auto& kFoundAtLoad = machine_isas();
}  // namespace

bool has_vbmi() noexcept {
#if defined(__x86_64__)
  static const bool has = has_bit(cpuid(7, 0).ecx, 1);
  return has;
#else
  return false;
#endif
}

Processor this_processor() noexcept {
#if defined(__x86_64__)
  constexpr unsigned kIntelEbx = 0x756e6547;  // "Genu"
  const unsigned signature = cpuid(1, 0).eax, base = (signature >> 8) & 0xFu;
  const unsigned extended = base == 0xFu ? (signature >> 20) & 0xFFu : 0u;
  const bool intel = cpuid(0, 0).ebx == kIntelEbx;
  return {intel ? Processor::Vendor::intel : Processor::Vendor::other, static_cast<int>(base + extended)};
#else
  return {};
#endif
}

std::string_view this_architecture() noexcept {
#if defined(__x86_64__)
  return "x86-64";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "other";
#endif
}

IsaStatus isa_status(Isa isa) {
  const Isa cap = isa_cap();
  if (isa > cap) return {isa, false, "TILEWISE_CPU_ISA=" + std::string(to_string(cap)) + " caps the choice"};
  return machine_isas()[static_cast<std::size_t>(isa)];
}

}  // namespace tilewise::backends::cpu
