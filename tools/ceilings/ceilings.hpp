// What this machine can do at most, measured now: multiply-add rates of register-only loops
// and the bandwidth of plain streaming reads. The denominators of "fraction of the ceiling".
#pragma once

#include <cstddef>
#include <string>

#include "backends/cpu/cpu_features.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::tools {

/// Rates over all threads together. A rate is 0 where the machine lacks the instruction.
struct Ceilings {
  int num_threads = 0;
  double fma_gflops = 0.0;     ///< fp32 multiply-add (AVX-512, AVX2 or the compiler's vectors), GFLOP/s
  double bf16_gflops = 0.0;    ///< vdpbf16ps, GFLOP/s
  double amx_gflops = 0.0;     ///< tdpbf16ps, GFLOP/s
  double read_gb_per_s = 0.0;  ///< reads from memory, the best of the read patterns tried, 10^9 bytes per second
  std::size_t read_bytes = 0;  ///< size of the buffer that was read: several times the last-level cache
  std::string notes;           ///< which instructions were timed, and why others were not

  /// The rate that bounds attention in `dtype`: f32 and f16 (widened to f32) by fma_gflops,
  /// f64 by half of it, bf16 by the fastest of the three.
  [[nodiscard]] double peak_gflops(DType dtype) const noexcept;
};

struct CeilingOptions {
  double seconds = 0.05;       ///< length of one measurement; each is taken several times and the best one kept
  std::size_t read_bytes = 0;  ///< 0: four times the last-level cache, between 256 MiB and 1 GiB
  bool cpu_time = false;       ///< what threads compute, in place of what the clock says: other programs run too
  /// Ignore every instruction set after this one (TILEWISE_CPU_ISA does not count here: a ceiling is the machine's).
  backends::cpu::Isa isa_limit = backends::cpu::Isa::amx_bf16;
};

/// Takes about a second. `num_threads` >= 1 is the number of threads that run each loop at once.
/// Throws Error(invalid_argument) for num_threads < 1 and std::bad_alloc where the buffer does not fit.
[[nodiscard]] Ceilings measure_ceilings(int num_threads, const CeilingOptions& options = {});

/// One JSON object, numbers as measured: the output of the `tilewise-ceilings` program.
[[nodiscard]] std::string to_json(const Ceilings& ceilings);

}  // namespace tilewise::tools
