// Which instruction sets this processor and system offer, and why not the others.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/visibility.hpp"

namespace tilewise::backends::cpu {

/// Ordered: a cap (TILEWISE_CPU_ISA) allows itself and everything before it. No processor has sets of both kinds.
enum class Isa : std::uint8_t { generic, avx2, avx512, avx512_bf16, amx_bf16, neon, neon_bf16, count_ };

inline constexpr int kIsaCount = static_cast<int>(Isa::count_);

/// "generic", "avx2", "avx512", "avx512_bf16", "amx_bf16", "neon", "neon_bf16".
[[nodiscard]] TILEWISE_INTERNAL std::string_view to_string(Isa isa) noexcept;

struct IsaStatus {
  Isa isa = Isa::generic;
  bool available = false;
  std::string reason;  ///< why not: what the processor lacks or the system refuses; empty when available
};

/// What the machine offers, TILEWISE_CPU_ISA aside. Detected once per process.
[[nodiscard]] TILEWISE_INTERNAL const std::array<IsaStatus, kIsaCount>& machine_isas();

/// Whether the processor has AVX512-VBMI, as all with AVX512-BF16 but the first.
[[nodiscard]] bool has_vbmi() noexcept;

/// What the table of cost estimates tells processors apart by.
struct Processor {
  enum class Vendor : std::uint8_t { intel, other };
  Vendor vendor = Vendor::other;
  int family = 0;  ///< as cpuid counts them, extended family included; 0 where there is no cpuid
};

/// This machine's.
[[nodiscard]] Processor this_processor() noexcept;

/// "x86-64", "aarch64", or "other".
[[nodiscard]] std::string_view this_architecture() noexcept;

/// The machine's status with TILEWISE_CPU_ISA applied (read at each call). Throws Error
/// where that variable names no instruction set.
[[nodiscard]] TILEWISE_INTERNAL IsaStatus isa_status(Isa isa);

}  // namespace tilewise::backends::cpu
