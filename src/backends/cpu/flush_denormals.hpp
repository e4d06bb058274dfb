// The floating-point mode of tasks that weigh: numbers below the normal range are 0, read and written. Weights of masks
// such as -100 are such numbers, and processors take tens of times as long for them.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace tilewise::backends::cpu {

/// While it lives. Vector registers of bf16 products flush always; where neither branch is compiled, all is kept.
class FlushDenormals {
 public:
#if defined(__SSE__)
  FlushDenormals() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlush); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kFlush = 0x8040;  // results, and what is read
  unsigned saved_;
#elif defined(__aarch64__)
  FlushDenormals() noexcept {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("msr fpcr, %0" : : "r"(saved_ | kFlush));
  }
  ~FlushDenormals() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  static constexpr std::uint64_t kFlush = std::uint64_t{1} << 24;  // FZ
  std::uint64_t saved_;
#else
  FlushDenormals() noexcept {}
  ~FlushDenormals() {}

 private:
#endif
 public:
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;
};

}  // namespace tilewise::backends::cpu
