// Whole loops in one asm statement each, so that no build mode, sanitizer or optimiser puts
// anything between the instructions; the read loops use intrinsics under target attributes.
#include "ceilings/loops.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tilewise::tools {
namespace {

using backends::cpu::Isa;

constexpr int kAccumulators = 12;  // two units of up to 6 cycles latency need 12 in flight

typedef float Vector4 __attribute__((vector_size(16)));

/// Multiply and add as the compiler renders them for the baseline target: the fp32 peak where there is no AVX2,
/// and the only loop off x86-64.
void run_plain_fma(std::int64_t iterations) {
  Vector4 sums[kAccumulators] = {};
  volatile float factor_source = 0.5f, term_source = 1e-9f;  // volatile: not known at compile time
  const float f = factor_source, t = term_source;
  const Vector4 factor = {f, f, f, f}, term = {t, t, t, t};
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (Vector4& sum : sums) sum = sum * factor + term;
  }
  volatile float sink = 0.0f;
  for (const Vector4& sum : sums) sink = sink + sum[0];
}

std::uint64_t read_plain(const std::byte* data, std::size_t size) {
  std::array<std::uint64_t, 8> sums{};
  for (std::size_t i = 0; i < size; i += 64) {
    std::array<std::uint64_t, 8> line;
    std::memcpy(line.data(), data + i, sizeof(line));
    for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += line[j];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

#if defined(__x86_64__)

constexpr std::uint32_t kHalfPair = 0x3F003F00u;  // two bf16 of 0.5, also an fp32 of about 0.5
constexpr std::uint32_t kTinyPair = 0x30893089u;  // two bf16 of about 1e-9: sums stay finite however long the loop

// The clobbers name xmm registers: that covers ymm and zmm.
__attribute__((target("avx512f"))) void run_zmm_fma(std::int64_t iterations) {
  asm volatile(
      "vpbroadcastd %1, %%zmm30\n\t"
      "vpbroadcastd %2, %%zmm31\n\t"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vpxord %%zmm\\r, %%zmm\\r, %%zmm\\r\n\t"
      ".endr\n"
      "1:\n\t"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vfmadd231ps %%zmm30, %%zmm31, %%zmm\\r\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(iterations)
      : "m"(kHalfPair), "m"(kTinyPair)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm30",
        "xmm31");
}

__attribute__((target("avx2,fma"))) void run_ymm_fma(std::int64_t iterations) {
  asm volatile(
      "vpbroadcastd %1, %%ymm14\n\t"
      "vpbroadcastd %2, %%ymm15\n\t"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vpxor %%ymm\\r, %%ymm\\r, %%ymm\\r\n\t"
      ".endr\n"
      "1:\n\t"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm\\r\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(iterations)
      : "m"(kHalfPair), "m"(kTinyPair)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14",
        "xmm15");
}

__attribute__((target("avx512f,avx512bf16"))) void run_bf16_dot(std::int64_t iterations) {
  asm volatile(
      "vpbroadcastd %1, %%zmm30\n\t"
      "vpbroadcastd %2, %%zmm31\n\t"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vpxord %%zmm\\r, %%zmm\\r, %%zmm\\r\n\t"
      ".endr\n"
      "1:\n\t"
      ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vdpbf16ps %%zmm30, %%zmm31, %%zmm\\r\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(iterations)
      : "m"(kHalfPair), "m"(kTinyPair)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm30",
        "xmm31");
}

/// Palette 1 with all eight tiles at their full 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Six accumulators (16 cycles each, about 52 of latency) and two operands. No compiler allocates tiles by itself.
__attribute__((target("amx-tile,amx-bf16"))) void run_amx_dot(std::int64_t iterations) {
  const TileConfig config;
  alignas(64) std::array<std::uint32_t, 256> left, right;
  left.fill(kHalfPair);
  right.fill(kTinyPair);
  asm volatile(
      "ldtilecfg %1\n\t"
      "tileloadd (%2,%4,1), %%tmm6\n\t"
      "tileloadd (%3,%4,1), %%tmm7\n\t"
      ".irp r,0,1,2,3,4,5\n\t"
      "tilezero %%tmm\\r\n\t"
      ".endr\n"
      "1:\n\t"
      ".irp r,0,1,2,3,4,5\n\t"
      "tdpbf16ps %%tmm7, %%tmm6, %%tmm\\r\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b\n\t"
      "tilerelease"
      : "+r"(iterations)
      : "m"(config), "r"(left.data()), "r"(right.data()), "r"(std::int64_t{64})
      : "cc", "memory");
}

constexpr std::size_t kPrefetchAhead = 2048;  // bytes: past the hardware prefetcher's stop at the page's end

template <int kStreams, bool kPrefetch>
__attribute__((target("avx512f"))) std::uint64_t read_zmm(const std::byte* data, std::size_t size) {
  const std::size_t stream_size = size / kStreams;
  __m512i sums[4] = {};
  for (std::size_t i = 0; i < stream_size; i += 256) {
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* at = data + static_cast<std::size_t>(s) * stream_size + i;
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        if constexpr (kPrefetch) _mm_prefetch(at + kPrefetchAhead + 64 * j, _MM_HINT_T0);
        sums[j] = _mm512_add_epi64(sums[j], _mm512_loadu_si512(at + 64 * j));
      }
    }
  }
  sums[0] = _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3]));
  std::array<std::uint64_t, 8> lanes;
  _mm512_storeu_si512(lanes.data(), sums[0]);
  std::uint64_t total = 0;
  for (const std::uint64_t lane : lanes) total += lane;
  return total;
}

template <int kStreams, bool kPrefetch>
__attribute__((target("avx2"))) std::uint64_t read_ymm(const std::byte* data, std::size_t size) {
  const std::size_t stream_size = size / kStreams;
  __m256i sums[8] = {};
  for (std::size_t i = 0; i < stream_size; i += 256) {
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* at = data + static_cast<std::size_t>(s) * stream_size + i;
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        if constexpr (kPrefetch) {
          if (j % 2 == 0) _mm_prefetch(at + kPrefetchAhead + 32 * j, _MM_HINT_T0);
        }
        sums[j] = _mm256_add_epi64(sums[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32 * j)));
      }
    }
  }
  std::uint64_t total = 0;
  for (const __m256i& sum : sums) {
    std::array<std::uint64_t, 4> lanes;
    std::memcpy(lanes.data(), &sum, sizeof(lanes));
    for (const std::uint64_t lane : lanes) total += lane;
  }
  return total;
}

#endif

}  // namespace

RateLoop fma_loop([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512) return {"vfmadd231ps zmm", kAccumulators * 32.0, run_zmm_fma};
  if (isa >= Isa::avx2) return {"vfmadd231ps ymm", kAccumulators * 16.0, run_ymm_fma};
#endif
  return {"plain multiply and add", kAccumulators * 8.0, run_plain_fma};
}

std::optional<RateLoop> bf16_loop([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512_bf16) return RateLoop{"vdpbf16ps zmm", kAccumulators * 64.0, run_bf16_dot};
#endif
  return std::nullopt;
}

std::optional<RateLoop> amx_loop([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::amx_bf16) return RateLoop{"tdpbf16ps", 6 * 2.0 * 16 * 16 * 32, run_amx_dot};
#endif
  return std::nullopt;
}

std::vector<ReadPattern> read_patterns([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512) {
    return {{"zmm loads, 1 stream", read_zmm<1, false>},
            {"zmm loads, 2 streams", read_zmm<2, false>},
            {"zmm loads, 1 stream, prefetch", read_zmm<1, true>},
            {"zmm loads, 2 streams, prefetch", read_zmm<2, true>}};
  }
  if (isa >= Isa::avx2) {
    return {{"ymm loads, 1 stream", read_ymm<1, false>},
            {"ymm loads, 2 streams", read_ymm<2, false>},
            {"ymm loads, 1 stream, prefetch", read_ymm<1, true>},
            {"ymm loads, 2 streams, prefetch", read_ymm<2, true>}};
  }
#endif
  return {{"plain loads, 1 stream", read_plain}};
}

}  // namespace tilewise::tools
