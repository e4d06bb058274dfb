// Runs the loops on several threads at once and keeps the best rate of a few tries: a ceiling
// is what the machine can do, so interference only ever lowers a measurement.
#include "ceilings/ceilings.hpp"

#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "ceilings/loops.hpp"
#include "ceilings/timing.hpp"
#include "tilewise/error.hpp"

namespace tilewise::tools {
namespace {

using backends::cpu::Isa;

constexpr int kTries = 5;
constexpr std::size_t kMinReadBytes = std::size_t{256} << 20, kMaxReadBytes = std::size_t{1} << 30;

double seconds_now(bool cpu_time) {
  std::timespec now{};
  clock_gettime(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Runs work(thread) on every thread at once, kTries times after one warm-up, and returns the shortest time from the
/// first start to the last end, or what the busiest thread computed for.
double best_seconds(int num_threads, bool cpu_time, const std::function<void(int)>& work) {
  const auto count = static_cast<std::size_t>(num_threads);
  std::vector<double> starts(count), stops(count);
  double best = std::numeric_limits<double>::infinity();
  int finished_tries = -1;  // the first round warms up caches, page tables and clocks
  std::barrier start_line(num_threads);
  std::barrier finish_line(num_threads, [&]() noexcept {
    const double start = *std::min_element(starts.begin(), starts.end());
    double seconds = 0.0;
    for (std::size_t i = 0; i < count; ++i) seconds = std::max(seconds, stops[i] - (cpu_time ? starts[i] : start));
    if (finished_tries >= 0) best = std::min(best, seconds);
    ++finished_tries;
  });
  const auto body = [&](int thread) {
    const auto index = static_cast<std::size_t>(thread);
    for (int round = 0; round <= kTries; ++round) {
      start_line.arrive_and_wait();
      starts[index] = seconds_now(cpu_time);
      work(thread);
      stops[index] = seconds_now(cpu_time);
      finish_line.arrive_and_wait();
    }
  };
  std::vector<std::jthread> threads;
  for (int thread = 1; thread < num_threads; ++thread) threads.emplace_back(body, thread);
  body(0);
  threads.clear();  // joins
  return best;
}

/// Iterations of `loop` that last about `seconds` on this thread.
std::int64_t iterations_for(const RateLoop& loop, double seconds) {
  std::int64_t iterations = 1000;
  for (;;) {
    const Clock::time_point start = Clock::now();
    loop.run(iterations);
    const double elapsed = seconds_since(start);
    if (elapsed > seconds / 8)
      return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(iterations) * seconds / elapsed));
    iterations *= 4;
  }
}

double gflops_of(const RateLoop& loop, int num_threads, const CeilingOptions& options) {
  const std::int64_t iterations = iterations_for(loop, options.seconds);
  const double best = best_seconds(num_threads, options.cpu_time, [&](int) { loop.run(iterations); });
  return loop.flops_per_iteration * static_cast<double>(iterations) * num_threads / best / 1e9;
}

/// Bytes of the last-level cache as this system reports it, 0 where it does not.
std::size_t last_level_cache() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  std::size_t kib = 0;
  char unit = 0;
  if (file >> kib >> unit && unit == 'K') return kib << 10;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes > 0) return static_cast<std::size_t>(bytes);
#endif
  return 0;
}

struct ReadResult {
  double gb_per_s = 0.0;
  std::size_t bytes = 0;
  std::string_view pattern;
};

ReadResult measure_reads(int num_threads, const CeilingOptions& options, Isa isa) {
  const std::size_t wanted =
      options.read_bytes != 0 ? options.read_bytes : std::clamp(4 * last_level_cache(), kMinReadBytes, kMaxReadBytes);
  const auto threads = static_cast<std::size_t>(num_threads);
  // Whole blocks for two streams of every thread, so that all patterns read the same bytes.
  const std::size_t slice = std::max<std::size_t>(1, wanted / (threads * 2 * kReadBlock)) * 2 * kReadBlock;
  // Plain pages, as the tensors of a caller have them; the caller's own threads touch them first.
  const std::unique_ptr<std::byte[]> buffer(new std::byte[slice * threads]);
  ReadResult result;
  result.bytes = slice * threads;
  {
    std::vector<std::jthread> writers;
    for (std::size_t t = 0; t < threads; ++t)
      writers.emplace_back([&, t] { std::fill_n(buffer.get() + t * slice, slice, std::byte{1}); });
  }
  std::vector<std::uint64_t> sums(threads);
  for (const ReadPattern& pattern : read_patterns(isa)) {
    const double best = best_seconds(num_threads, options.cpu_time, [&](int thread) {
      const auto t = static_cast<std::size_t>(thread);
      sums[t] = pattern.sum(buffer.get() + t * slice, slice);
    });
    for (const std::uint64_t sum : sums) {  // every 8 bytes count 0x0101...01: proof that all of them were read
      if (sum != slice / 8 * std::uint64_t{0x0101010101010101})
        throw Error(ErrorCode::runtime, "ceilings: the read loop '" + std::string(pattern.name) + "' missed bytes");
    }
    const double rate = static_cast<double>(result.bytes) / best / 1e9;
    if (rate > result.gb_per_s) {
      result.gb_per_s = rate;
      result.pattern = pattern.name;
    }
  }
  return result;
}

/// The last instruction set up to `limit` that this machine offers.
Isa best_isa(Isa limit) {
  Isa best = Isa::generic;
  for (const auto& status : backends::cpu::machine_isas())
    if (status.available && status.isa <= limit) best = status.isa;
  return best;
}

std::string missing_note(Isa isa, Isa limit) {
  if (isa > limit) return "not asked for";
  return backends::cpu::machine_isas()[static_cast<std::size_t>(isa)].reason;
}

std::string json_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) quoted += c;
  }
  return quoted + '"';
}

}  // namespace

double Ceilings::peak_gflops(DType dtype) const noexcept {
  if (dtype == DType::f64) return fma_gflops / 2.0;  // a vector holds half as many
  return dtype == DType::bf16 ? std::max({fma_gflops, bf16_gflops, amx_gflops}) : fma_gflops;
}

Ceilings measure_ceilings(int num_threads, const CeilingOptions& options) {
  if (num_threads < 1)
    throw Error(ErrorCode::invalid_argument, "num_threads: must be >= 1 (got " + std::to_string(num_threads) + ")");
  const Isa isa = best_isa(options.isa_limit);
  Ceilings ceilings;
  ceilings.num_threads = num_threads;

  const RateLoop fma = fma_loop(isa);
  ceilings.fma_gflops = gflops_of(fma, num_threads, options);
  ceilings.notes = "fp32: " + std::string(fma.instruction);
  if (const auto loop = bf16_loop(isa)) {
    ceilings.bf16_gflops = gflops_of(*loop, num_threads, options);
    ceilings.notes += "; bf16: " + std::string(loop->instruction);
  } else {
    ceilings.notes += "; no vdpbf16ps: " + missing_note(Isa::avx512_bf16, options.isa_limit);
  }
  if (const auto loop = amx_loop(isa)) {
    ceilings.amx_gflops = gflops_of(*loop, num_threads, options);
    ceilings.notes += "; amx: " + std::string(loop->instruction);
  } else {
    ceilings.notes += "; no tdpbf16ps: " + missing_note(Isa::amx_bf16, options.isa_limit);
  }
  const ReadResult reads = measure_reads(num_threads, options, isa);
  ceilings.read_gb_per_s = reads.gb_per_s;
  ceilings.read_bytes = reads.bytes;
  ceilings.notes += "; reads: " + std::string(reads.pattern);
  return ceilings;
}

std::string to_json(const Ceilings& ceilings) {
  char numbers[512];
  std::snprintf(numbers, sizeof(numbers),
                "{\"num_threads\": %d, \"fma_gflops\": %.6g, \"bf16_gflops\": %.6g, \"amx_gflops\": %.6g, "
                "\"peak_gflops\": {\"f32\": %.6g, \"bf16\": %.6g, \"f16\": %.6g}, "
                "\"read_gb_per_s\": %.6g, \"read_bytes\": %zu, \"notes\": ",
                ceilings.num_threads, ceilings.fma_gflops, ceilings.bf16_gflops, ceilings.amx_gflops,
                ceilings.peak_gflops(DType::f32), ceilings.peak_gflops(DType::bf16), ceilings.peak_gflops(DType::f16),
                ceilings.read_gb_per_s, ceilings.read_bytes);
  return numbers + json_string(ceilings.notes) + "}";
}

}  // namespace tilewise::tools
